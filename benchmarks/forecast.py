"""Cost of predicting the upload time for canter, compared with knowing it: docs/results/canter/forecast.md, made
again.

    python benchmarks/forecast.py [--tasks har] [--seeds 10..12] [--out docs/results/canter]

Timing only: who is in time after how many batches is a matter of the clock, and nothing is trained.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from fedbalancer.core.files import write_bytes, write_text
from fedbalancer.data import Task
from fedbalancer.experiments.simulation import build
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.server.loop import rounds

METHODS = ("canter", "canter+forecast", "canter+late", "canter+forecast+late")
USERS = {"synthetic": 100}
ROUNDS = 300


def timed(task: Task, name: str, method: str, seed: int) -> dict[str, Any]:
    """One run: how many clients were asked, had no report in their round, were cut off in their upload; and how many
    batches were reported."""
    world = build(RunSpec(task=name, method=method, users=USERS.get(name), seed=seed, timing_only=True), task)
    state = world.server.init(world.executor.initial_weights(seed))
    asked = missing = upload = 0
    batches = 0.0
    for after, result in rounds(world.server, world.engine, state, lambda now: now.round >= ROUNDS):
        state = after
        asked += len(result.plan.cohort)
        missing += len(result.missing)
        upload += sum(each.why == "upload" for each in result.missing)
        batches += sum(report.timings.train_s / report.summary.batch_s for report in result.reports)
    return {
        "task": name, "method": method, "seed": seed, "asked": asked, "missing": missing, "cut_off_in_upload": upload,
        "batches": batches, "clock_s": state.clock_s,
    }  # fmt: skip


def table(made: pl.DataFrame) -> list[str]:
    """All seeds together, in Markdown."""
    lines = [
        "| task | method | no report in its round | cut off in its upload | batches reported per 1000 s |",
        "|:--|:--|--:|--:|--:|",
    ]
    sums = made.group_by("task", "method", maintain_order=True).sum()
    for row in sums.iter_rows(named=True):
        shares = [f"{100 * row[name] / row['asked']:.1f} %" for name in ("missing", "cut_off_in_upload")]
        cells = [f"`{row['task']}`", f"`{row['method']}`", *shares, f"{1000 * row['batches'] / row['clock_s']:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def made_anew(tasks: Sequence[str], seeds: Sequence[int]) -> pl.DataFrame:
    """A row a run."""
    loaded = {name: RunSpec(task=name, users=USERS.get(name)).load_task() for name in tasks}
    return pl.DataFrame([timed(loaded[name], name, m, seed) for name in tasks for m in METHODS for seed in seeds])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=lambda text: text.split(","), default=["har", "synthetic", "shakespeare"])
    parser.add_argument("--seeds", default="10..12")
    parser.add_argument("--out", type=Path, default=Path("docs/results/canter"))
    told = parser.parse_args()
    first, _, last = told.seeds.partition("..")
    found = made_anew(told.tasks, range(int(first), int(last or first) + 1))
    told.out.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    found.write_parquet(buffer)
    write_bytes(told.out / "forecast.parquet", buffer.getvalue())
    write_text(told.out / "forecast.md", "\n".join(["## forecast", "", *table(found)]))


if __name__ == "__main__":
    main()
