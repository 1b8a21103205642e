"""Results as a notebook shows them: tables, frames and pictures, from memory as from a folder."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from fedbalancer.errors import BadSetting, MissingData, UnknownName
from fedbalancer.report.stored import Results, RunCurve, StoredRun
from fedbalancer.report.values import Comparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("accuracy", "speedup")


@dataclass(frozen=True, eq=False, repr=False)
class Plot:
    """A picture that a notebook shows; `figure` is matplotlib's, to change or save."""

    figure: Figure

    def save(self, path: Path | str) -> None:
        """Write it to a file, of the kind that its name says (png, svg, pdf)."""
        self.figure.savefig(path, dpi=160)

    def _repr_png_(self) -> bytes:
        from fedbalancer.report.figures import image_bytes

        return image_bytes(self.figure, "png")

    def __repr__(self) -> str:
        return "Plot (a notebook shows it; elsewhere .save('picture.png'))"


def comparison_frame(comparison: Comparison) -> pl.DataFrame:
    """A row per method: speed-up with its interval, on how many seeds the target was reached, times and accuracies."""
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
            "accuracy": method.accuracy.mean,
            "accuracy_std": method.accuracy.std,
        })  # fmt: skip
    kinds = {"method": pl.String, "bound": pl.String, "reached": pl.Int64, "seeds": pl.Int64}
    names = list(rows[0]) if rows else list(kinds)
    return pl.DataFrame(rows, schema={name: kinds.get(name, pl.Float64) for name in names})


def curves_frame(runs: tuple[RunCurve, ...]) -> pl.DataFrame:
    """All evaluations of all runs: method, seed, round, start_s, clock_s, accuracy, loss, schedule."""
    parts = [
        evals.select(pl.lit(run.method).alias("method"), pl.lit(run.seed, dtype=pl.Int64).alias("seed"), pl.all())
        for run in runs
        for evals in (run.evals, run.grid)
        if evals is not None and evals.height
    ]
    return pl.concat(parts, how="diagonal") if parts else pl.DataFrame()


def to_pandas(frame: pl.DataFrame) -> Any:
    """The frame as pandas has it; without pyarrow, which polars would ask for."""
    try:
        import pandas as pd  # type: ignore[import-untyped,unused-ignore]
    except ModuleNotFoundError as error:
        raise MissingData("pandas is not installed; type: pip install pandas, or take .to_polars()") from error
    return pd.DataFrame(frame.to_dict(as_series=False))


def plotted(comparison: Comparison, kind: str = "accuracy") -> Plot:
    """Accuracy over time, or the speed-ups."""
    from fedbalancer.report.figures import accuracy_figure, speedup_figure

    if kind not in KINDS:
        raise UnknownName("plot", kind, KINDS)
    if not comparison.runs:
        raise BadSetting("these scores came without their runs, so there is nothing to draw")
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
    )
    draw = accuracy_figure if kind == "accuracy" else speedup_figure
    return Plot(draw(results, comparison))


def plotted_run(task: str, run: RunCurve) -> Plot:
    """Accuracy over time of one run."""
    from fedbalancer.report.figures import accuracy_figure

    results = Results(
        folder=Path(), task=task, variant="", scale="", methods=(run.method,), seeds=(run.seed,), rounds=None,
        budgets_s={}, runs=(StoredRun(run),), single=True,
    )  # fmt: skip
    return Plot(accuracy_figure(results, None))


def comparison_html(comparison: Comparison) -> str:
    """The table, with what a reader must know above and below it."""
    from fedbalancer.report.tables import HEADER, caption_lines, table_rows

    above, *below = (escape(line) for line in caption_lines(comparison))
    head = "".join(f"<th>{escape(name)}</th>" for name in HEADER)
    rows = "".join(
        "<tr>" + "".join(f"<td>{_cell(cell.text, cell.best)}</td>" for cell in row) + "</tr>"
        for row in table_rows(comparison)
    )
    notes = "".join(f"<br>note: {escape(note)}" for note in comparison.notes)
    return f"<p>{above}</p><table><tr>{head}</tr>{rows}</table><p><small>{'<br>'.join(below)}{notes}</small></p>"


def _cell(text: str, best: bool) -> str:
    return f"<b>{escape(text)}</b>" if best else escape(text)
