"""Figure 2: fixed deadlines of 0.5, 1, 1.5 and 2 T, and SmartPC."""

from __future__ import annotations

from collections.abc import Iterator

from fedbalancer.paper.item import Finding, Frames
from fedbalancer.paper.items.compared import Compared
from fedbalancer.paper.measured import Group
from fedbalancer.paper.printed import FIGURE2_ACCURACY, FIGURE2_FASTER
from fedbalancer.paper.rows import accuracy_of, rows_of
from fedbalancer.paper.verdict import Ours

HALF, THREE_HALVES = "fedavg[deadline=.5T]", "fedavg[deadline=1.5T]"
METHODS = (HALF, "fedavg+1t", THREE_HALVES, "fedavg+2t", "fedavg+spc")
BEST = {"femnist": "fedavg+1t", "shakespeare": "fedavg+spc"}
"""The paper's best method of each task."""


def found(frames: Frames) -> list[Finding]:
    """Final accuracies, and how much faster the paper's best method is than each of the others."""
    rows = list(rows_of(frames["methods"]))
    return [*_accuracies(rows), *_quotients(rows)]


def _accuracies(rows: list) -> Iterator[Finding]:  # type: ignore[type-arg]
    for row in rows:
        paper = FIGURE2_ACCURACY.get((row["task"], row["method"]))
        yield Finding.of(row["task"], f"{row['method']}: accuracy", accuracy_of(row), paper, ratio=False, digits=3)


def _quotients(rows: list) -> Iterator[Finding]:  # type: ignore[type-arg]
    by_name = {(row["task"], row["method"]): row for row in rows}
    for task in dict.fromkeys(row["task"] for row in rows):
        best = BEST.get(task)
        if best is None:
            continue
        for method in METHODS:
            other, first = by_name[task, method], by_name[task, best]
            if method != best and (paper := FIGURE2_FASTER.get((task, method))) is not None:
                both = other["reached"] and first["reached"] and other["ratio"]
                ours = Ours(first["ratio"] / other["ratio"] if both else None)
                yield Finding.of(task, f"{best}: times as fast as {method}", ours, paper)


ITEM = Compared(
    name="fig2",
    title="how the deadline decides the speed of FedAvg",
    place="Figure 2",
    groups=(Group("deadlines", METHODS),),
    found=found,
    notes=(
        "The paper shows FEMNIST and Shakespeare and no intervals; its times are to fixed accuracies (.750 and .450), "
        "ours to the final accuracy of the best FedAvg variant among these.",
    ),
)
