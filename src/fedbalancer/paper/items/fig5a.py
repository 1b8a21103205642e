"""Figure 5a: noise on what clients say about their losses; and ours, the mechanisms whose epsilon is known."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from fedbalancer.paper.charts import compared_charts
from fedbalancer.paper.item import Finding, Frames, Presentation
from fedbalancer.paper.items.compared import Compared, headlines, joined, score_tables
from fedbalancer.paper.items.mechanisms import LABELS, NOTE, epsilon_figure
from fedbalancer.paper.measured import Group
from fedbalancer.paper.printed import NOISE
from fedbalancer.paper.rows import accuracy_of, rows_of
from fedbalancer.reporting.plotting import accuracy_panels

FACTORS = {"fedbalancer": 0.0, "fedbalancer[noise_factor=.5]": 0.5, "fedbalancer[noise_factor=5]": 5.0}
REFERENCES = ("fedavg+1t", "prox+1t")


def found(frames: Frames) -> list[Finding]:
    """Accuracy by noise factor, and by mechanism and epsilon."""
    rows = list(rows_of(frames["methods"]))
    papers = [
        Finding.of(
            row["task"], f"noise factor {FACTORS[row['method']]:g}: accuracy", accuracy_of(row),
            NOISE.get((row["task"], FACTORS[row["method"]])), ratio=False, digits=3,
        )
        for row in rows
        if row["method"] in FACTORS
    ]  # fmt: skip
    return papers + [
        Finding.of(row["task"], f"{LABELS[row['method']]}: accuracy", accuracy_of(row), None, ratio=False, digits=3)
        for row in rows
        if row["method"] in LABELS
    ]


class WithEpsilon(Compared):
    """The mechanisms have a drawing of their own, and short names."""

    def present(self, frames: Frames) -> Presentation:
        shown, methods = super().present(frames), frames["methods"]
        short = {name: frame.with_columns(pl.col("method").replace(LABELS)) for name, frame in frames.items()}
        papers = frames["curves"].filter(pl.col("method").is_in([*REFERENCES, *FACTORS]))
        figures = {self.name: accuracy_panels(papers)}
        if methods["method"].is_in(list(LABELS)).any():
            figures[f"{self.name}-epsilon"] = epsilon_figure(methods)
        points = headlines(short["methods"], Group(self.groups[-1].name, (LABELS[self.groups[-1].methods[-1]],)))
        return replace(
            shown,
            headline=joined(points),
            points=points,
            charts=compared_charts(short["methods"], short["scores"], short["curves"], shown.findings),
            tables=[*score_tables(short["methods"])],
            figures=figures,
        )


ITEM = WithEpsilon(
    name="fig5a",
    title="noise on the metadata that clients share",
    place="Figure 5a",
    groups=(
        Group("noise", (*REFERENCES, *FACTORS)),
        Group("mechanisms", (*REFERENCES, *LABELS)),
    ),
    found=found,
    notes=(
        "The paper shows FEMNIST, one accuracy for each noise factor and no intervals. fedavg+1t is the reference.",
        NOTE,
    ),
)  # fmt: skip
