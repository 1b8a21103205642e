"""What `fedbalancer compare` shows that is told nothing: a comparison that needs no data.

100 generated users whose data differ in kind and amount (`fedbalancer.tasks.synthetic`). How it was chosen: two cuts of
the smartwatch recordings by exercise were tried first, on FedAvg, and swung by .03 to .10 from one evaluation to the
next. `synthetic` was taken next, knowing that an earlier run of it (60 rounds, two seeds) had favoured FedBalancer.
Users and rounds were then set looking at FedAvg only (150 rounds: `fedavg+1t` .310 .305 .310 for seeds 0 to 2,
`fedavg+wfa` .50 for seed 0, still rising), 120 rounds and one budget to save time, and frozen before FedBalancer ran.
It lost: README.
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
