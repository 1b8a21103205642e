"""What a run found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbalancer.core.types import Weights

if TYPE_CHECKING:
    import polars as pl

    from fedbalancer.reporting.notebook import Plot


@dataclass(frozen=True, eq=False, repr=False)
class RunResult:
    """A run that ended: `status` is done or stopped. Frames have the columns of the tables in the run folder (there
    task, method and seed are columns too); the population is of when the run first came to its end, and None before;
    `classes` what was trained by class up to then; `privacy` has every client's epsilon where there is noise on what it
    tells."""

    status: str
    folder: Path | None
    rounds: pl.DataFrame
    evals: pl.DataFrame
    clients: pl.DataFrame
    weights: Weights
    population: pl.DataFrame | None = None
    classes: pl.DataFrame | None = None
    privacy: pl.DataFrame | None = None
    task: str = ""
    method: str = ""
    seed: int = 0

    @property
    def accuracy(self) -> float:
        """Accuracy at the last evaluation."""
        return float(self.evals["accuracy"][-1]) if len(self.evals) else math.nan

    @property
    def clock_s(self) -> float:
        """Simulated seconds at the end of the last round."""
        return float(self.rounds["end_s"][-1]) if len(self.rounds) else 0.0

    def __repr__(self) -> str:
        reached = "" if math.isnan(self.accuracy) else f", accuracy {self.accuracy:.3f}"
        name = f"{self.task}, {self.method}, seed {self.seed}, {self.status}"
        return f"RunResult({name}: {len(self.rounds)} rounds, {self.clock_s:,.0f} s{reached})"

    def _repr_html_(self) -> str:
        shown = {
            "task": self.task, "method": self.method, "seed": self.seed, "status": self.status,
            "rounds": len(self.rounds), "simulated seconds": f"{self.clock_s:,.0f}", "accuracy": f"{self.accuracy:.3f}",
        }  # fmt: skip
        cells = "".join(f"<tr><th>{name}</th><td>{escape(str(value))}</td></tr>" for name, value in shown.items())
        return f"<table>{cells}</table>"

    def to_polars(self) -> pl.DataFrame:
        """The evaluations, with task, method and seed; the other tables are `rounds`, `clients` and `population`."""
        import polars as pl

        named = {"task": pl.lit(self.task), "method": pl.lit(self.method), "seed": pl.lit(self.seed, dtype=pl.Int64)}
        return self.evals.with_columns(**named)

    def to_pandas(self) -> Any:
        """The same for pandas."""
        from fedbalancer.reporting.notebook import to_pandas

        return to_pandas(self.to_polars())

    def plot(self) -> Plot:
        """A picture of the accuracy over time; `result.plot().save("picture.png")` writes it to a file."""
        from fedbalancer.reporting.notebook import plot_run
        from fedbalancer.reporting.results import RunCurve, split_by_schedule

        by_rounds, grid = split_by_schedule(self.evals)
        curve = RunCurve(self.method, self.seed, by_rounds, self.status, self.clock_s, None, grid)
        return plot_run(self.task, curve)
