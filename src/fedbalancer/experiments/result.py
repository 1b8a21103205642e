"""The result of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbalancer.core.metrics import ACCURACY, Metric
from fedbalancer.core.types import Weights

if TYPE_CHECKING:
    import polars as pl

    from fedbalancer.reporting.notebook import Plot


@dataclass(frozen=True, eq=False, repr=False)
class RunResult:
    """The tables and the weights of a run. In a notebook it renders as a table.

    The tables have the same columns as those in the run folder, without task, method and seed.

    Args:
        status: done or stopped.
        folder: The run folder; None for a run in memory.
        rounds: A row per round.
        evals: A row per evaluation.
        clients: A row per client and round.
        weights: The weights of the final model.
        population: A row per client at the end of the run, with the model's metrics on its data; None if the run was
            stopped.
        classes: A row per class with its number of trained samples; None if classes were not counted.
        privacy: The epsilon of every client; None if its metadata has no noise.
        task: The task's name.
        method: The method's name.
        seed: The seed.
        metric: The main metric, which targets and scores use.

    >>> import fedbalancer as fb
    >>> fb.run("synthetic", "fedavg+1t", users=8, rounds=2, timing_only=True).rounds["selected"].to_list()
    [8, 8]
    """

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
    metric: Metric = ACCURACY

    @property
    def value(self) -> float:
        """Main metric at the last evaluation; NaN if there was none."""
        return float(self.evals[self.metric.name][-1]) if len(self.evals) else math.nan

    @property
    def accuracy(self) -> float:
        """Accuracy at the last evaluation; NaN if there was none."""
        return float(self.evals["accuracy"][-1]) if len(self.evals) else math.nan

    @property
    def clock_s(self) -> float:
        """Simulated seconds at the end of the last round."""
        return float(self.rounds["end_s"][-1]) if len(self.rounds) else 0.0

    def __repr__(self) -> str:
        reached = "" if math.isnan(self.value) else f", {self.metric.title} {self.value:.3f}"
        name = f"{self.task}, {self.method}, seed {self.seed}, {self.status}"
        return f"RunResult({name}: {len(self.rounds)} rounds, {self.clock_s:,.0f} s{reached})"

    def _repr_html_(self) -> str:
        shown = {
            "task": self.task, "method": self.method, "seed": self.seed, "status": self.status,
            "rounds": len(self.rounds), "simulated seconds": f"{self.clock_s:,.0f}",
            self.metric.title: f"{self.value:.3f}",
        }  # fmt: skip
        cells = "".join(f"<tr><th>{name}</th><td>{escape(str(value))}</td></tr>" for name, value in shown.items())
        return f"<table>{cells}</table>"

    def to_polars(self) -> pl.DataFrame:
        """Return the evaluations as a polars table, with task, method and seed."""
        import polars as pl

        names = {"task": pl.lit(self.task), "method": pl.lit(self.method), "seed": pl.lit(self.seed, dtype=pl.Int64)}
        return self.evals.with_columns(**names)

    def to_pandas(self) -> Any:
        """Return the evaluations as a pandas table, with task, method and seed."""
        from fedbalancer.reporting.notebook import to_pandas

        return to_pandas(self.to_polars())

    def plot(self) -> Plot:
        """Plot the main metric over time. `result.plot().save("picture.png")` writes it to a file."""
        from fedbalancer.reporting.notebook import plot_run
        from fedbalancer.reporting.results import RunCurve, split_by_schedule

        by_rounds, grid = split_by_schedule(self.evals)
        curve = RunCurve(self.method, self.seed, by_rounds, self.status, self.clock_s, None, grid, None, self.metric)
        return plot_run(self.task, curve)
