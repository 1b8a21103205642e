"""Figure 5a: noise on the clients' loss statistics; and our mechanisms, whose epsilon is known, at several epsilons."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from fedbalancer.methods.names import canonical_name
from fedbalancer.paper.charts import comparison_charts
from fedbalancer.paper.item import Finding, Frames, Presentation
from fedbalancer.paper.items.comparisons import (
    ComparisonItem,
    accuracy_finding,
    join_points,
    score_tables,
    write_points,
)
from fedbalancer.paper.printed import NOISE
from fedbalancer.paper.scores import Group, full_target, list_rows
from fedbalancer.reporting.plotting import accuracy_panels, add_legend, make_panels
from fedbalancer.reporting.style import DASHES, choose_looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOISE_FACTORS = {"fedbalancer": 0.0, "fedbalancer[noise_factor=.5]": 0.5, "fedbalancer[noise_factor=5]": 5.0}
REFERENCES = ("fedavg+1t", "prox+1t")
INFINITE = math.inf
MULTIPLIERS = {INFINITE: 0.0, 8.0: 7.103, 4.0: 12.8, 1.0: 44.15}
"""Noise multiplier by epsilon after 140 reports of one client at delta 1e-5, as printed by `fedbalancer privacy plan
--epsilon 8 --rounds 140`."""
FACTORS = {8.0: 188.1, 4.0: 338.7, 1.0: 1169.0}
"""The same for the paper's statistics of losses clipped at 5."""


def _name_methods() -> dict[tuple[str, float], str]:
    """Return the method by mechanism and epsilon; the recommended one, the histogram at epsilon 8, comes last."""
    fresh, tracked = (
        "fedbalancer[forward_pass=every",
        "fedbalancer-clients[threshold=TrackedThreshold,pace=ConstantPace",
    )
    methods = {("none, forward pass in every round", INFINITE): f"{fresh}]"}
    methods |= {
        ("gaussian", epsilon): f"{fresh},summary=gaussian(noise_factor={factor:g},loss_clip=5,utility_samples='all')]"
        for epsilon, factor in sorted(FACTORS.items())
    }
    for name, start, more in (
        ("fraction-tracker", tracked, ""),
        ("secagg-histogram", fresh, ",clip=5,least=3"),
        ("histogram", fresh, ",clip=5"),
    ):
        for epsilon in (INFINITE, 1.0, 4.0, 8.0):
            summary = f"{name}(noise_multiplier={MULTIPLIERS[epsilon]:g}{more})"
            methods[name, epsilon] = f"{start},summary={summary}]"
    return {key: canonical_name(method) for key, method in methods.items()}


METHODS = _name_methods()
LABELS = {
    method: f"{name}, epsilon {'∞' if epsilon == INFINITE else format(epsilon, 'g')}"
    for (name, epsilon), method in METHODS.items()
}
NOTE = (
    "The mechanisms are not in the paper. Epsilon is that of 140 reports of one client at delta 1e-5, for the metadata "
    "only; the fraction tracker protects a client, the others one sample. Full names of the methods: "
    + "; ".join(method for (_, epsilon), method in METHODS.items() if epsilon in (INFINITE, 8.0))
    + "."
)


def find_noise(frames: Frames) -> list[Finding]:
    """Return the accuracy by noise factor, and by mechanism and epsilon."""
    rows = list(list_rows(frames["methods"]))
    by_factor = [
        accuracy_finding(
            row, f"noise factor {NOISE_FACTORS[row['method']]:g}",
            NOISE.get((row["task"], NOISE_FACTORS[row["method"]])),
        )
        for row in rows
        if row["method"] in NOISE_FACTORS
    ]  # fmt: skip
    return by_factor + [accuracy_finding(row, LABELS[row["method"]]) for row in rows if row["method"] in LABELS]


class NoiseItem(ComparisonItem):
    """Adds a figure of the mechanisms by epsilon, and shows their methods with short names."""

    def present(self, frames: Frames) -> Presentation:
        shown, methods = super().present(frames), frames["methods"]
        short = {name: frame.with_columns(pl.col("method").replace(LABELS)) for name, frame in frames.items()}
        in_paper = frames["curves"].filter(pl.col("method").is_in([*REFERENCES, *NOISE_FACTORS]))
        figures = {self.name: accuracy_panels(in_paper)}
        if methods["method"].is_in(list(LABELS)).any():
            figures[f"{self.name}-epsilon"] = epsilon_figure(methods)
        points = write_points(short["methods"], Group(self.groups[-1].name, (LABELS[self.groups[-1].methods[-1]],)))
        return replace(
            shown,
            headline=join_points(points),
            points=points,
            charts=comparison_charts(short["methods"], short["scores"], short["curves"], shown.findings),
            tables=[*score_tables(short["methods"])],
            figures=figures,
        )


def epsilon_figure(methods: pl.DataFrame) -> Figure:
    """Plot final accuracy and speed-up by epsilon, a line per mechanism: mean over seeds and 95% interval."""
    rows = full_target(methods).filter(pl.col("method").is_in(list(LABELS)))
    tasks = rows["task"].unique(maintain_order=True).to_list()
    columns = (("accuracy", "final accuracy"), ("ratio", "speed-up to the target"))
    figure, panels = make_panels(
        [f"{task}: {title}" for task in tasks for _, title in columns], "Epsilon", "Mean and 95% interval", across=2
    )
    places = {epsilon: place for place, epsilon in enumerate(sorted(MULTIPLIERS))}
    for number, axes in enumerate(panels):
        task, column = tasks[number // 2], columns[number % 2][0]
        by_method = {row["method"]: row for row in rows.filter(pl.col("task") == task).iter_rows(named=True)}
        for shift, (name, look) in enumerate(choose_looks(list(dict.fromkeys(name for name, _ in METHODS))).items()):
            points = [
                (places[epsilon] + 0.06 * (shift - 2), by_method[method])
                for (mechanism, epsilon), method in sorted(METHODS.items(), key=lambda entry: entry[0][1])
                if mechanism == name and method in by_method and by_method[method][column] is not None
            ]
            spans = [
                [abs(row[column] - _default(row[f"{column}_{end}"], row[column])) for _, row in points]
                for end in ("low", "high")
            ]
            axes.errorbar(
                [x for x, _ in points], [row[column] for _, row in points], yerr=spans, label=name, color=look.colour,
                linestyle=DASHES[look.dash], marker="o", markersize=4, capsize=2, linewidth=1.2,
            )  # fmt: skip
        axes.set_xticks(list(places.values()), ["∞" if epsilon == INFINITE else f"{epsilon:g}" for epsilon in places])
    return add_legend(figure)


def _default(value: float | None, default: float) -> float:
    return default if value is None else value


FIG5A = NoiseItem(
    name="fig5a",
    title="noise on the metadata that clients share",
    place="Figure 5a",
    groups=(
        Group("noise", (*REFERENCES, *NOISE_FACTORS)),
        Group("mechanisms", (*REFERENCES, *LABELS)),
    ),
    find=find_noise,
    notes=(
        "The paper shows FEMNIST with one accuracy per noise factor and no intervals. fedavg+1t is the reference.",
        NOTE,
    ),
)  # fmt: skip
