"""What `fedbalancer compare` shows that is told nothing: a comparison of a few minutes that needs no data.

100 generated users whose data differ in kind and amount (`fedbalancer.tasks.synthetic`), so that there is something for
a deadline and a choice of clients to get wrong. Chosen on FedAvg alone: with the deadline T, which drops the largest
data on slow phones, it comes to .31 in 150 rounds (seeds .310 .305 .310), while waiting for all has .33 .41 .43 .48 .50
after 15 to 59 rounds in the same time and goes on rising. FedAvg in all its forms is there, because the best of them
sets the target.
"""

from __future__ import annotations

from typing import NamedTuple


class Usual(NamedTuple):
    """The options of a comparison where the user gives none."""

    task: str
    users: int | None
    rounds: int | None
    seeds: int
    extend: float
    methods: tuple[str, ...]


DEMO = Usual(
    task="synthetic",
    users=100,
    rounds=120,
    seeds=8,
    extend=1.0,
    methods=("fedavg+1t", "fedavg+2t", "fedavg+wfa", "prox+1t", "fedbalancer"),
)
