"""What `fedbalancer compare` shows that is told nothing: eight people's smartwatches, and two others to test.

How it was chosen, so that nobody takes it for more than it is. The task `watch` and its settings were made long before,
on FedAvg (`fedbalancer.data.tasks.watch`). Its 50 rounds were too few to show anything: FedBalancer was 1.06 times as
fast as the best FedAvg (0.97 to 1.21, eight seeds), because FedAvg still rose at the end of the budget, and the loss
threshold, which first moves after 40 rounds, had hardly begun. So the demo has 100 rounds, and eight seeds. Before
that, 100 users of `synthetic` were tried, where it loses: docs/benchmarks/limits.md.
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
    task="watch",
    users=None,
    rounds=100,
    seeds=8,
    extend=1.0,
    methods=("fedavg+1t", "fedavg+wfa", "prox+1t", "fedbalancer", "canter"),
)
