"""Figure 7: FedBalancer on top of Oort, q-FFL and Structured Updates, each against the method alone."""

from __future__ import annotations

from fedbalancer.paper.item import Finding, Frames
from fedbalancer.paper.items.compared import Compared
from fedbalancer.paper.measured import Group
from fedbalancer.paper.printed import COLLABORATION
from fedbalancer.paper.rows import accuracy_of, full_target, rows_of, speedup_of
from fedbalancer.paper.verdict import Ours

PAIRS = {
    "oort": ("oort", "oortbalancer"),
    "qffl": ("fedavg+1t+qffl", "fedbalancer+qffl"),
    "structured": ("fedavg+1t+structured", "fedbalancer+structured"),
}


def found(frames: Frames) -> list[Finding]:
    """Speed-up and gain in accuracy of each pair."""
    alone = {
        (row["task"], row["group"]): row
        for row in full_target(frames["methods"]).iter_rows(named=True)
        if row["method"] == PAIRS[row["group"]][0]
    }
    findings = []
    for row in rows_of(frames["methods"]):
        base, joint = PAIRS[row["group"]]
        if row["method"] == joint:
            speedup, gain = COLLABORATION.get((row["task"], row["group"]), (None, None))
            before = accuracy_of(alone[row["task"], row["group"]]).mean
            after = accuracy_of(row).mean
            more = Ours(after - before if after is not None and before is not None else None)
            what = f"{joint} over {base}"
            findings.append(Finding.of(row["task"], f"{what}: speed-up", speedup_of(row), speedup))
            findings.append(Finding.of(row["task"], f"{what}: accuracy gained", more, gain, ratio=False, digits=3))
    return findings


ITEM = Compared(
    name="fig7",
    title="FedBalancer together with other methods",
    place="Figure 7",
    groups=tuple(Group(name, pair) for name, pair in PAIRS.items()),
    found=found,
    notes=(
        "The paper shows FEMNIST, without intervals. The target of a pair is the final accuracy of its first method.",
    ),
)
