"""FedBalancer with the mechanisms of docs/privacy.md, at several epsilons."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import polars as pl

from fedbalancer.paper.rows import full_target
from fedbalancer.reporting.plotting import add_legend, make_panels
from fedbalancer.reporting.style import DASHES, choose_looks
from fedbalancer.spelling import one_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INFINITE = math.inf
MULTIPLIERS = {INFINITE: 0.0, 8.0: 7.103, 4.0: 12.8, 1.0: 44.15}
"""Epsilon after 140 reports of one client at delta 1e-5, and the noise for it over the sensitivity; as `fedbalancer
privacy plan --epsilon 8 --rounds 140` gives them."""
FACTORS = {8.0: 188.1, 4.0: 338.7, 1.0: 1169.0}
"""The same for the paper's statistics of losses cut at 5."""


def _spelled() -> dict[tuple[str, float], str]:
    """The method of every mechanism and epsilon. The histogram, which is what to take, is the last, and 8 its last."""
    fresh, tracked = (
        "fedbalancer[forward_pass=every",
        "fedbalancer-clients[threshold=TrackedThreshold,pace=ConstantPace",
    )
    found = {("none, forward pass in every round", INFINITE): f"{fresh}]"}
    found |= {
        ("gaussian", epsilon): f"{fresh},summary=gaussian(noise_factor={factor:g},loss_clip=5)]"
        for epsilon, factor in sorted(FACTORS.items())
    }
    for name, begin, more in (
        ("fraction-tracker", tracked, ""),
        ("secagg-histogram", fresh, ",clip=5,least=3"),
        ("histogram", fresh, ",clip=5"),
    ):
        for epsilon in (INFINITE, 1.0, 4.0, 8.0):
            summary = f"{name}(noise_multiplier={MULTIPLIERS[epsilon]:g}{more})"
            found[name, epsilon] = f"{begin},summary={summary}]"
    return {key: one_name(method) for key, method in found.items()}


SPELLED = _spelled()
LABELS = {
    method: f"{name}, epsilon {'∞' if epsilon == INFINITE else format(epsilon, 'g')}"
    for (name, epsilon), method in SPELLED.items()
}
NOTE = (
    "The mechanisms are ours, not the paper's: epsilon is that of 140 reports of one client at delta 1e-5, metadata "
    "only; the fraction tracker hides a client, the others one sample. Their methods in full: "
    + "; ".join(method for (_, epsilon), method in SPELLED.items() if epsilon in (INFINITE, 8.0))
    + "."
)


def epsilon_figure(methods: pl.DataFrame) -> Figure:
    """Final accuracy and speed-up by epsilon, a line for each mechanism: the mean over seeds and its 95 % interval."""
    rows = full_target(methods).filter(pl.col("method").is_in(list(LABELS)))
    tasks = rows["task"].unique(maintain_order=True).to_list()
    columns = (("accuracy", "final accuracy"), ("ratio", "speed-up to the target"))
    figure, grid = make_panels(
        [f"{task}: {words}" for task in tasks for _, words in columns], "Epsilon", "Mean and 95 % interval", across=2
    )
    places = {epsilon: place for place, epsilon in enumerate(sorted(MULTIPLIERS))}
    for number, axes in enumerate(grid):
        task, column = tasks[number // 2], columns[number % 2][0]
        of_method = {row["method"]: row for row in rows.filter(pl.col("task") == task).iter_rows(named=True)}
        for shift, (name, drawn) in enumerate(choose_looks(list(dict.fromkeys(name for name, _ in SPELLED))).items()):
            told = [
                (places[epsilon] + 0.06 * (shift - 2), of_method[method])
                for (mechanism, epsilon), method in sorted(SPELLED.items(), key=lambda each: each[0][1])
                if mechanism == name and method in of_method and of_method[method][column] is not None
            ]
            spans = [
                [abs(row[column] - _or(row[f"{column}_{end}"], row[column])) for _, row in told]
                for end in ("low", "high")
            ]
            axes.errorbar(
                [x for x, _ in told], [row[column] for _, row in told], yerr=spans, label=name, color=drawn.colour,
                linestyle=DASHES[drawn.dash], marker="o", markersize=4, capsize=2, linewidth=1.2,
            )  # fmt: skip
        axes.set_xticks(list(places.values()), ["∞" if each == INFINITE else f"{each:g}" for each in places])
    return add_legend(figure)


def _or(value: float | None, instead: float) -> float:
    return instead if value is None else value
