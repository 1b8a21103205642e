"""The report of one run without a comparison: what it reached, as values, as a sentence and as a table."""

from __future__ import annotations

from typing import Any

import polars as pl

from fedbalancer.report.axes import clock_name
from fedbalancer.report.privacy import given_away
from fedbalancer.report.stored import Results, StoredRun
from fedbalancer.report.style import seconds
from fedbalancer.report.tables import plain_markdown


def run_summary(results: Results) -> dict[str, Any]:
    """The values of `summary.json` of a run folder."""
    run = results.runs[0]
    evals = run.curve.evals.filter(pl.col("accuracy").is_not_null() & pl.col("accuracy").is_finite()).sort("clock_s")
    last = evals.row(-1, named=True) if evals.height else {}
    given = list(given_away(results))
    best: Any = evals["accuracy"].max()
    return {
        "task": results.task,
        "variant": results.variant,
        "scale": results.scale,
        "method": run.curve.method,
        "seed": run.curve.seed,
        "status": run.curve.status,
        "why": run.why,
        "rounds": run.rounds.height,
        "clock_s": run.curve.last_s,
        "budget_s": results.budgets_s.get(run.curve.seed),
        "accuracy": last.get("accuracy"),
        "loss": last.get("loss"),
        "best_accuracy": best,
        **({"epsilon": given[0].epsilon, "privacy": given[0].sentence} if given else {}),
    }


def run_headline(results: Results) -> str:
    """One sentence for the top of the page."""
    summary = run_summary(results)
    name = f"{summary['method']} on {summary['task']}, seed {summary['seed']}"
    if summary["accuracy"] is None:
        return f"{name}: no evaluation yet{_not_done(results.runs[0])}."
    after = f"after {summary['rounds']} rounds and {seconds(summary['clock_s'])} of {clock_name(results)}"
    stands = "is at" if summary["status"] == "running" else "ended at"
    return f"{name}, {stands} an accuracy of {summary['accuracy']:.1%} {after}{_not_done(results.runs[0])}."


def run_markdown(results: Results) -> str:
    """The table of a run folder."""
    summary = run_summary(results)
    rows = [f"| {key} | {_cell(value)} |" for key, value in summary.items() if value not in (None, "")]
    return "\n".join(["| | |", "|:--|:--|", *rows]) + "\n"


def _not_done(run: StoredRun) -> str:
    return "" if run.curve.status == "done" else f" (status: {run.curve.status})"


def _cell(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return plain_markdown(text)
