"""Figure 6: what each part of FedBalancer brings, added one by one to Prox; and FedBalancer without each."""

from __future__ import annotations

from fedbalancer.paper.item import Finding, Frames
from fedbalancer.paper.items.compared import Compared
from fedbalancer.paper.measured import Group
from fedbalancer.paper.rows import accuracy_of, rows_of, speedup_of

STEPS = {
    "prox+1t": "Prox",
    "fedbalancer-deadline": "Prox + sample selection, with its client selection",
    "fedbalancer": "Prox + sample selection + deadline control",
}
WITHOUT = {
    "fedbalancer-samples": "FedBalancer without sample selection",
    "fedbalancer-clients": "FedBalancer without client selection",
    "fedbalancer-clients-deadline": "Prox + sample selection alone",
    "fedbalancer-samples-deadline": "Prox + client selection alone",
    "fedbalancer-samples-clients": "Prox + deadline control alone",
}


def found(frames: Frames) -> list[Finding]:
    """The paper shows curves and prints no number."""
    words = {**STEPS, **WITHOUT}
    rows = [row for row in rows_of(frames["methods"]) if row["method"] in words]
    speeds = [Finding.of(row["task"], f"{words[row['method']]}: speed-up", speedup_of(row), None) for row in rows]
    return speeds + [
        Finding.of(row["task"], f"{words[row['method']]}: accuracy", accuracy_of(row), None, ratio=False, digits=3)
        for row in rows
    ]


ITEM = Compared(
    name="fig6",
    title="what the parts of FedBalancer bring",
    place="Figure 6",
    groups=(
        Group("parts", ("fedavg+1t", "fedavg+2t", "fedavg+spc", "fedavg+wfa", *WITHOUT, *STEPS)),
    ),
    found=found,
    notes=(
        "The paper shows FEMNIST and Reddit, and says: with sample selection alone FEMNIST gets slower and Reddit "
        "faster, with deadline control both get faster; it has no numbers.",
        "The rows that take one part away, or have one part alone, are ours.",
    ),
)  # fmt: skip
