"""Figure 5b: a fresh forward pass in every round, or losses as they were last seen."""

from __future__ import annotations

from fedbalancer.paper.item import Finding, Frames
from fedbalancer.paper.items.compared import Compared
from fedbalancer.paper.measured import Group
from fedbalancer.paper.rows import accuracy_of, rows_of, speedup_of

METHODS = ("fedbalancer", "fedbalancer+forwardpass")


def found(frames: Frames) -> list[Finding]:
    """The paper says in words that training is slower with the forward pass, and prints no number."""
    rows = [row for row in rows_of(frames["methods"]) if row["method"] in METHODS]
    speeds = [Finding.of(row["task"], f"{row['method']}: speed-up", speedup_of(row), None) for row in rows]
    return speeds + [
        Finding.of(row["task"], f"{row['method']}: accuracy", accuracy_of(row), None, ratio=False, digits=3)
        for row in rows
    ]


ITEM = Compared(
    name="fig5b",
    title="with and without a forward pass in every round",
    place="Figure 5b",
    groups=(Group("forward pass", ("fedavg+1t", "prox+1t", *METHODS)),),
    found=found,
    notes=("The paper shows FEMNIST, and says that the forward pass resulted in slower training; it has no numbers.",),
)
