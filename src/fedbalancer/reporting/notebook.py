"""Results for notebooks: HTML tables, data frames and plots."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from fedbalancer.core.errors import BadSetting, MissingData, UnknownName
from fedbalancer.reporting.comparison import Comparison
from fedbalancer.reporting.results import Results, RunCurve, StoredRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("accuracy", "speedup")


@dataclass(frozen=True, eq=False, repr=False)
class Plot:
    """A plot that a notebook displays.

    Args:
        figure: The matplotlib figure, which can be changed.
    """

    figure: Figure

    def save(self, path: Path | str) -> None:
        """Save the plot.

        Args:
            path: The file; its suffix (png, svg, pdf) selects the format.
        """
        self.figure.savefig(path, dpi=160)

    def _repr_png_(self) -> bytes:
        from fedbalancer.reporting.plotting import image_bytes

        return image_bytes(self.figure, "png")

    def __repr__(self) -> str:
        return "Plot (displayed in a notebook; elsewhere use .save('plot.png'))"


def comparison_frame(comparison: Comparison) -> pl.DataFrame:
    """Return a row per method: speed-up with its interval, seeds that reach the target, median time, final metric."""
    rows = []
    for method in comparison.methods:
        main = method.at(method.targets[0])
        rows.append({
            "method": method.method,
            "speedup": method.speedup.mean,
            "speedup_low": method.speedup.low,
            "speedup_high": method.speedup.high,
            "bound": getattr(method.speedup, "bound", ""),
            "reached": method.reached,
            "seeds": len(method.scores),
            "median_s": main.median_s,
            comparison.metric.name: method.final.mean,
            f"{comparison.metric.name}_std": method.final.std,
        })  # fmt: skip
    kinds = {"method": pl.String, "bound": pl.String, "reached": pl.Int64, "seeds": pl.Int64}
    names = list(rows[0]) if rows else list(kinds)
    return pl.DataFrame(rows, schema={name: kinds.get(name, pl.Float64) for name in names})


def curves_frame(runs: tuple[RunCurve, ...]) -> pl.DataFrame:
    """Return all evaluations of all runs: method, seed, round, start_s, clock_s, metrics, schedule."""
    parts = [
        evals.select(pl.lit(run.method).alias("method"), pl.lit(run.seed, dtype=pl.Int64).alias("seed"), pl.all())
        for run in runs
        for evals in (run.evals, run.grid)
        if evals is not None and evals.height
    ]
    return pl.concat(parts, how="diagonal") if parts else pl.DataFrame()


def to_pandas(frame: pl.DataFrame) -> Any:
    """Convert a polars frame to pandas, without pyarrow.

    Raises:
        MissingData: If pandas is not installed.
    """
    try:
        import pandas as pd  # type: ignore[import-untyped,unused-ignore]
    except ModuleNotFoundError as error:
        raise MissingData("pandas is not installed; run: pip install pandas, or use .to_polars()") from error
    return pd.DataFrame(frame.to_dict(as_series=False))


def plot_comparison(comparison: Comparison, kind: str = "accuracy") -> Plot:
    """Plot the metric over time ("accuracy") or the speed-ups ("speedup").

    Raises:
        UnknownName: If there is no such kind.
        BadSetting: If the comparison holds scores without their runs.
    """
    from fedbalancer.reporting.figures import accuracy_figure, speedup_figure

    if kind not in KINDS:
        raise UnknownName("plot", kind, KINDS)
    if not comparison.runs:
        raise BadSetting("this comparison holds scores without runs, so there is nothing to plot")
    results = Results(
        folder=Path(),
        task=comparison.task or "unnamed task",
        variant=comparison.variant,
        scale="",
        methods=tuple(method.method for method in comparison.methods),
        seeds=tuple(seed.seed for seed in comparison.seeds),
        rounds=comparison.rounds,
        budgets_s={seed.seed: seed.budget_s for seed in comparison.seeds},
        runs=tuple(StoredRun(run) for run in comparison.runs),
        rule=comparison.rule,
        targets=comparison.targets,
        metric=comparison.metric,
    )
    draw = accuracy_figure if kind == "accuracy" else speedup_figure
    return Plot(draw(results, comparison))


def plot_run(task: str, run: RunCurve) -> Plot:
    """Plot the metric of one run over time."""
    from fedbalancer.reporting.figures import accuracy_figure

    results = Results(
        folder=Path(), task=task, variant="", scale="", methods=(run.method,), seeds=(run.seed,), rounds=None,
        budgets_s={}, runs=(StoredRun(run),), single=True, metric=run.metric,
    )  # fmt: skip
    return Plot(accuracy_figure(results, None))


def comparison_html(comparison: Comparison) -> str:
    """Return the table of scores as HTML, with its caption and notes."""
    from fedbalancer.reporting.tables import caption_lines, make_header, make_rows

    above, *below = (escape(line) for line in caption_lines(comparison))
    head = "".join(f"<th>{escape(name)}</th>" for name in make_header(comparison))
    rows = "".join(
        "<tr>" + "".join(f"<td>{_cell(cell.text, cell.best)}</td>" for cell in row) + "</tr>"
        for row in make_rows(comparison)
    )
    notes = "".join(f"<br>note: {escape(note)}" for note in comparison.notes)
    return f"<p>{above}</p><table><tr>{head}</tr>{rows}</table><p><small>{'<br>'.join(below)}{notes}</small></p>"


def _cell(text: str, best: bool) -> str:
    return f"<b>{escape(text)}</b>" if best else escape(text)
