"""Where phones come and go: accuracy of methods against that of one computer with all data seen until then.

    python benchmarks/availability_bound.py [--cell phones-day] [--always-online] [--seeds 3] [--out FOLDER]

Who has been online decides whose data a model can have learned from. For every time of a grid, the samples of all
clients that reported until then are pooled on one computer, which trains the task's model on them. Of five learning
rates and 60 epochs it keeps the highest accuracy on the test data. No method could know that much: the computer has all
samples at once, waits for nobody and chooses on the test data. A method close to this accuracy cannot be made much
faster, because the data that it lacks were on phones that had not been online.

A client is seen when a report of it counted in `canter`'s run. With --always-online, the cell's phones never leave.
Finished parts are kept in the folder.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedbalancer.core.files import write_json, write_text
from fedbalancer.data import Task
from fedbalancer.experiments.benchmark.suite import SUITES, Cell
from fedbalancer.experiments.execute import execute
from fedbalancer.experiments.execute import run as run_once

METHODS = ("canter", "canter+autorate", "fedavg+1t", "prox+1t", "fedbuff")
TIMES = 6
BUDGET_S = 84_000.0
"""Simulated seconds: nearly a day."""
RATES = (0.003, 0.01, 0.03, 0.1, 0.3)
EPOCHS = 60
FIRST_SEED = 3
"""Neither a tuning nor a scoring seed of the benchmark."""


def times() -> list[float]:
    """Return the seconds at which accuracies are compared."""
    return [BUDGET_S * (number + 1) / TIMES for number in range(TIMES)]


def run_method(cell: Cell, task: Task, method: str, seed: int) -> dict[str, Any]:
    """Run a method for the budget: its accuracy (mean of three evaluations) and the clients seen at every time."""
    spec = cell.base(method)
    settings = {**spec.settings, "eval_every_s": BUDGET_S / TIMES / 10}
    result = execute(replace(spec, seed=seed, budget_s=BUDGET_S, settings=settings), task=task)
    reports = result.clients.filter(pl.col("outcome") == "completed").join(result.rounds, on="round")
    accuracy, clients = [], []
    for at_s in times():
        accuracy.append(float(result.evals.filter(pl.col("clock_s") <= at_s)["accuracy"].tail(3).to_numpy().mean()))
        clients.append(sorted(reports.filter(pl.col("end_s") <= at_s)["client"].unique().to_list()))
    return {"accuracy": accuracy, "clients": clients}


def pooled_accuracy(task: Task, clients: list[str]) -> float:
    """Return the highest accuracy of the task's model when one computer trains it on the data of all these clients."""
    parts = [task.clients[client] for client in clients]
    pooled = tuple(np.concatenate([part[number] for part in parts]) for number in (0, 1))
    alone = replace(task, clients={"all": pooled})
    settings = {"rounds": EPOCHS, "epochs": 1, "clients_per_round": 1, "eval_every": 1}
    runs = (
        run_once(alone, "fedavg+wfa", settings={**settings, "learning_rate": rate}, progress=False) for rate in RATES
    )
    return max(float(run.evals["accuracy"].to_numpy().max()) for run in runs)


def pooled_accuracies(task: Task, seen: list[list[str]]) -> list[float]:
    """Return the pooled accuracy at every time; sets of clients that did not grow are trained on once."""
    found: dict[int, float] = {}
    for clients in seen:
        if len(clients) not in found:
            found[len(clients)] = pooled_accuracy(task, clients)
    return [found[len(clients)] for clients in seen]


def kept(path: Path, compute: Callable[[], Any]) -> Any:
    """Return the content of a JSON file; if there is none, compute and write it."""
    if not path.is_file():
        write_json(path, compute())
    return json.loads(path.read_text(encoding="utf-8"))


def measure(cell: Cell, out: Path, seed: int) -> dict[str, list[float]]:
    """Return the number of clients seen and the accuracies at every time, for one seed."""
    task = cell.base(METHODS[0]).load_task()
    runs = {
        method: kept(out / f"{cell.name}-{method}-{seed}.json", partial(run_method, cell, task, method, seed))
        for method in METHODS
    }
    seen = runs[METHODS[0]]["clients"]
    pooled = kept(out / f"{cell.name}-pooled-{seed}.json", lambda: pooled_accuracies(task, seen))
    columns = {"clients seen": [float(len(clients)) for clients in seen], "pooled": pooled}
    return columns | {method: row["accuracy"] for method, row in runs.items()}


def to_table(cell: Cell, rows: list[dict[str, list[float]]]) -> str:
    """Return the means over seeds as a Markdown table."""
    names = [f"`{name}`" if name in METHODS else name for name in rows[0]]
    lines = ["| simulated hours | " + " | ".join(names) + " |", "|--:" * (len(names) + 1) + "|"]
    for number, at_s in enumerate(times()):
        means = [float(np.mean([row[name][number] for row in rows])) for name in rows[0]]
        cells = [f"{means[0]:.0f} of {cell.users}", *(f"{mean:.3f}" for mean in means[1:])]
        lines.append(f"| {at_s / 3600:.1f} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cell", default="phones-day")
    parser.add_argument("--always-online", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/availability-bound"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    cell = SUITES["tta-1"].cell(options.cell)
    if options.always_online:
        cell = replace(cell, name=f"{cell.name}-always-online", traces="")
    rows = [measure(cell, options.out, seed) for seed in range(FIRST_SEED, FIRST_SEED + options.seeds)]
    text = to_table(cell, rows)
    write_text(options.out / f"{cell.name}.md", text)
    print(text)


if __name__ == "__main__":
    main()
