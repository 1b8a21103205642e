"""Figure 5a: noise on what clients say about their losses."""

from __future__ import annotations

from fedbalancer.paper.item import Finding, Frames
from fedbalancer.paper.items.compared import Compared, accuracy_of, rows_of
from fedbalancer.paper.measured import Group
from fedbalancer.paper.printed import NOISE

FACTORS = {"fedbalancer": 0.0, "fedbalancer[noise_factor=.5]": 0.5, "fedbalancer[noise_factor=5]": 5.0}


def found(frames: Frames) -> list[Finding]:
    """Accuracy by noise factor."""
    return [
        Finding.of(
            row["task"], f"noise factor {FACTORS[row['method']]:g}: accuracy", accuracy_of(row),
            NOISE.get((row["task"], FACTORS[row["method"]])), ratio=False, digits=3,
        )
        for row in rows_of(frames["methods"])
        if row["method"] in FACTORS
    ]  # fmt: skip


ITEM = Compared(
    name="fig5a",
    title="noise on the metadata that clients share",
    place="Figure 5a",
    groups=(Group("noise", ("fedavg+1t", "prox+1t", *FACTORS)),),
    found=found,
    notes=(
        "The paper shows FEMNIST, one accuracy for each noise factor and no intervals. fedavg+1t is the reference.",
    ),
)
