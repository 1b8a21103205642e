"""Validation of forecasts: learn a fleet from the first ten rounds of a run, forecast, and compare with the next forty.

    python benchmarks/twin.py simulated [--seeds 12] [--tasks synthetic,watch]
    python benchmarks/twin.py testbed --folder runs/testbed-twin [--seed 0]
    python benchmarks/twin.py shadow [--seeds 10]

`simulated` draws a hidden fleet of 21 devices per seed, runs it for fifty rounds, learns from the tables of the first
ten only, and forecasts. `testbed` does the same with the run folders of `fedbalancer testbed` (rounds 50). Both are
resumable: every finished case is a JSON file in --out, and the table is made from these files.

Compared are the seconds of every round from 11 to 50 (is it in the interval?), the seconds from round 10 to rounds 20,
30, 40 and 50, and the seconds to every accuracy that is reached after round 10 (median and interval).

`shadow` replays recorded runs under the other methods, and compares with runs of these methods on the same fleet.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedbalancer.core.files import write_json, write_text
from fedbalancer.data import Task, load_task
from fedbalancer.experiments.estimates import estimate
from fedbalancer.experiments.execute import run as run_once
from fedbalancer.experiments.learned_fleet import LearnedFleet, learn, vary
from fedbalancer.experiments.shadow import shadow
from fedbalancer.simulation.devices import Fleet

METHODS = ("fedavg+wfa", "fedavg+1t", "fedbalancer", "canter")
FIRST, LAST, CLIENTS, PER_ROUND = 10, 50, 21, 5
RUNS, LEVEL = 10, 0.9
CLOCKS = (20, 30, 40, 50)
TARGETS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85)
HELD = 3


def hidden_fleet(seed: int) -> Fleet:
    """Return a fleet that no method and no forecast knows: other speeds, spreads and networks with every seed."""
    rng = np.random.default_rng(seed)
    slow, mid, fast = (float(each) for each in rng.uniform(0.5, 2.0, 3) * (1.5, 0.6, 0.2))
    spread = float(rng.uniform(0.02, 0.25))
    return Fleet.synthetic(
        CLIENTS,
        slow={"share": 0.3, "batch_s": {"lognormal": [slow, 0.3]}, "spread": spread},
        mid={"share": 0.4, "batch_s": {"lognormal": [mid, 0.3]}, "spread": spread},
        fast={"share": 0.3, "batch_s": {"lognormal": [fast, 0.3]}, "spread": spread},
        bandwidth={"down": {"lognormal": [0.05, 0.8]}, "up": {"lognormal": [0.02, 0.8]}, "spread": 0.25},
        seed=seed,
    )


def levels(evals: pl.DataFrame) -> list[tuple[int, float, float]]:
    """Return round, clock and the mean of the last three accuracies."""
    rows = evals.filter(pl.col("round") > 0).sort("clock_s")
    accuracy = rows["accuracy"].to_list()
    return [
        (number, clock_s, float(np.mean(accuracy[place - HELD + 1 : place + 1])))
        for place, (number, clock_s) in enumerate(zip(rows["round"], rows["clock_s"], strict=True))
        if place >= HELD - 1
    ]


def arrival(evals: pl.DataFrame, target: float, last_s: float = math.inf) -> float | None:
    """Return when a target is held, at the earliest after round ten."""
    return next((s for number, s, level in levels(evals) if level >= target and number > FIRST and s <= last_s), None)


def simulate(
    task: Task | str, method: str, seed: int, fleet: Fleet, settings: dict[str, Any], rounds: int,
    timing_only: bool = False,
) -> Any:  # fmt: skip
    chosen = {"clients_per_round": PER_ROUND, "eval_every": 1, **settings}
    return run_once(task, method, seed=seed, rounds=rounds, devices=fleet, settings=chosen, workers=1, progress=False,
                    timing_only=timing_only)  # fmt: skip


def compare(
    learned: LearnedFleet,
    recorded: tuple[pl.DataFrame, pl.DataFrame],
    task: Task,
    method: str,
    settings: dict[str, Any],
    timing_only: bool = False,
) -> dict[str, Any]:
    """Forecast with a learned fleet, and compare with what was recorded."""
    rounds, evals = recorded
    counts = dict(zip(learned.devices["client"], learned.devices["rounds"], strict=True))
    settings = {"window_s": learned.recording.window_s(), **settings}
    forecasts = [
        simulate(task, method, 1000 + number, vary(learned.fleet, counts, number), settings,
                 rounds.height, timing_only)
        for number in range(RUNS)
    ]  # fmt: skip
    ends = dict(zip(rounds["round"], rounds["end_s"], strict=True))
    began_s, last = ends[FIRST], max(ends)
    lasted = np.array([end - start for start, end in rounds.filter(pl.col("round") > FIRST)["start_s", "end_s"].rows()])
    every = np.concatenate([(each.rounds["end_s"] - each.rounds["start_s"]).to_numpy()[FIRST:] for each in forecasts])
    low, high = np.quantile(every, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    cells: dict[str, Any] = {
        "rounds": len(lasted), "rounds_inside": int(((lasted >= low - 1e-9) & (lasted <= high + 1e-9)).sum()),
        "clocks": [], "accuracies": [],
    }  # fmt: skip
    for number in [each for each in CLOCKS if each <= last]:
        took = [_between(each.rounds, FIRST, number) for each in forecasts]
        cells["clocks"].append(_cell(number, ends[number] - began_s, took))
    horizon_s = min(float(rounds["end_s"].max()), *(float(each.rounds["end_s"].max()) for each in forecasts))
    for target in () if timing_only else TARGETS:
        seen_s = arrival(evals, target)
        before = any(level >= target for number, _, level in levels(evals) if number <= FIRST)
        if seen_s is None or before:
            continue
        took_s = [arrival(each.evals, target, math.inf) for each in forecasts]
        cells["accuracies"].append(_cell(target, seen_s, took_s, max(horizon_s, seen_s)))
    return cells


def _between(rounds: pl.DataFrame, first: int, last: int) -> float:
    ends = dict(zip(rounds["round"], rounds["end_s"], strict=True))
    return float(ends[last] - ends[first])


def _cell(what: float, seen: float, predicted: Sequence[float | None], most: float = math.inf) -> dict[str, Any]:
    """Compare a value with its forecast; without an end of the interval there is nothing to judge."""
    forecast = estimate(predicted, LEVEL, most)
    low, high = forecast.low, forecast.high
    judged = low is not None or high is not None
    inside = (low is None or seen >= low) and (high is None or seen <= high)
    error = None if forecast.median is None else abs(forecast.median / seen - 1)
    return {"what": what, "seen": seen, **forecast.to_json(), "inside": inside if judged else None, "error": error}


def simulated_case(arguments: tuple[str, str, int, str]) -> None:
    """One hidden fleet, one method: written to a file."""
    name, method, seed, out = arguments
    path = Path(out) / "cases" / f"simulated {name} {method} {seed}.json"
    if path.is_file():
        return
    task = load_task(name, users=CLIENTS) if name == "synthetic" else load_task(name)
    fleet = hidden_fleet(seed)
    truth = simulate(task, method, seed, fleet, {}, LAST)
    with tempfile.TemporaryDirectory() as folder:
        run_once(
            task, method, seed=seed, rounds=FIRST, devices=fleet, workers=1, out=f"{folder}/run", progress=False,
            settings={"clients_per_round": PER_ROUND, "eval_every": 1},
        )  # fmt: skip
        learned = learn(f"{folder}/run")
        cells = compare(learned, (truth.rounds, truth.evals), task, method, {})
    write_json(path, {"kind": "simulated", "task": name, "method": method, "seed": seed, **cells})


def testbed_case(folder: Path, method: str, seed: int, out: Path, timing_only: bool) -> None:
    """One method of a test bed: learned from its first ten rounds."""
    path = out / "cases" / f"testbed {method} {seed}.json"
    run = folder / method / f"seed-{seed}"
    if path.is_file() or not (run / "rounds.parquet").is_file():
        return
    plan = json.loads((folder / "bed.json").read_text(encoding="utf-8"))
    # The phones sent the small model, whose bytes the fleet was learned from; the task's clock stands for a larger one.
    task = replace(load_task(plan["task"], scale=plan["scale"], users=plan["clients"]), model_bytes=None)
    rounds, evals = (pl.read_parquet(run / f"{name}.parquet", glob=False) for name in ("rounds", "evals"))
    learned = learn(run, rounds=FIRST)
    settings = {**plan["overrides"], "network_floor": 0.1}
    recorded = rounds.filter(pl.col("round") <= LAST), evals.filter(pl.col("round") <= LAST)
    cells = compare(learned, recorded, task, method, settings, timing_only)
    write_json(path, {"kind": "testbed", "task": plan["task"], "method": method, "seed": seed, **cells})


def shadow_case(arguments: tuple[str, int, str]) -> None:
    """One hidden fleet: every method is recorded, and replayed under the others."""
    name, seed, out = arguments
    path = Path(out) / "cases" / f"shadow {name} {seed}.json"
    if path.is_file():
        return
    task, fleet, cells = load_task(name, users=CLIENTS), hidden_fleet(seed), []
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            method: run_once(
                task,
                method,
                seed=seed,
                rounds=LAST,
                devices=fleet,
                workers=1,
                out=f"{folder}/{method}",
                progress=False,
                settings={"clients_per_round": PER_ROUND},
            )
            for method in METHODS
        }
        for method in METHODS:
            replayed = shadow(f"{folder}/{method}", METHODS)
            for row in replayed.rows:
                cells.append({
                    "recorded": method, "method": row.method, "error": replayed.error,
                    "truth_s": runs[row.method].clock_s,
                    "low_s": row.low_s, "typical_s": row.typical_s, "high_s": row.high_s, "known": row.known,
                    "recorded_s": replayed.recorded_s, "recommended": replayed.recommendation == row.method,
                })  # fmt: skip
    write_json(path, {"kind": "shadow", "task": name, "seed": seed, "cells": cells})


def shadow_table(cases: Sequence[dict[str, Any]]) -> list[str]:
    """Return how often the bounds of a replay contain the truth, in Markdown."""
    lines = [
        "| recorded | replayed | truth within the bounds (1% slack) | median width (high / low) | median error "
        "| recommended | of these faster |",
        "|:--|:--|--:|--:|--:|--:|--:|",
    ]
    cells = [cell for case in cases for cell in case["cells"]]
    for recorded in METHODS:
        for method in METHODS:
            each = [cell for cell in cells if (cell["recorded"], cell["method"]) == (recorded, method)]
            inside = [0.99 * cell["low_s"] <= cell["truth_s"] <= 1.01 * cell["high_s"] for cell in each]
            width = np.median([cell["high_s"] / cell["low_s"] for cell in each])
            error = np.median([abs(cell["typical_s"] / cell["truth_s"] - 1) for cell in each])
            advised = [cell["truth_s"] < cell["recorded_s"] for cell in each if cell["recommended"]]
            faster = f"{sum(advised)} of {len(advised)}" if advised else "–"
            lines.append(f"| `{recorded}` | `{method}` | {sum(inside)} of {len(inside)} | {width:.2f} | {error:.1%} "
                         f"| {len(advised)} | {faster} |")  # fmt: skip
    return lines


def table(cases: Iterable[dict[str, Any]]) -> list[str]:
    """Return the coverage of the intervals and the error of the medians, in Markdown."""
    lines = [
        "| runs | task | method | rounds in their interval | clocks in theirs | median error of clocks "
        "| times to accuracy in theirs | median error of times |",
        "|:--|:--|:--|--:|--:|--:|--:|--:|",
    ]
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for case in cases:
        for method in (case["method"], "all"):
            groups.setdefault((case["kind"], case["task"], method), []).append(case)
    for (kind, task, method), each in sorted(
        groups.items(), key=lambda item: (item[0][:2], item[0][2] == "all", item[0])
    ):
        inside, count = (sum(case[name] for case in each) for name in ("rounds_inside", "rounds"))
        cells = [f"{kind}, {len(each)}", f"`{task}`", f"`{method}`" if method != "all" else "all",
                 f"{inside / count:.0%} of {count:,}"]  # fmt: skip
        for name in ("clocks", "accuracies"):
            listed = [cell for case in each for cell in case[name]]
            judged = [cell["inside"] for cell in listed if cell["inside"] is not None]
            errors = [cell["error"] for cell in listed if cell["error"] is not None]
            without = f", {len(listed) - len(judged)} not predicted" if len(judged) < len(listed) else ""
            cells.append(f"{np.mean(judged):.0%} of {len(judged)}{without}" if judged else f"–{without}")
            cells.append(f"{np.median(errors):.1%}" if errors else "–")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("simulated", "testbed", "shadow", "table"))
    parser.add_argument("--tasks", type=lambda text: text.split(","), default=["synthetic"])
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("runs/testbed-twin"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timing-only", action="store_true", help="train nothing; no times to accuracy")
    parser.add_argument("--out", type=Path, default=Path("docs/results/twin"))
    options = parser.parse_args()
    (options.out / "cases").mkdir(parents=True, exist_ok=True)
    if options.kind == "simulated":
        cases = [(task, method, seed, str(options.out)) for seed in range(options.seeds) for task in options.tasks
                 for method in options.methods]  # fmt: skip
        with ProcessPoolExecutor(options.jobs) as pool:
            list(pool.map(simulated_case, cases))
    elif options.kind == "testbed":
        for method in options.methods:
            testbed_case(options.folder, method, options.seed, options.out, options.timing_only)
    elif options.kind == "shadow":
        for seed in range(options.seeds):
            for task in options.tasks:
                shadow_case((task, seed, str(options.out)))
    stored = [json.loads(file.read_text(encoding="utf-8")) for file in sorted((options.out / "cases").glob("*.json"))]
    forecasts = [case for case in stored if case["kind"] != "shadow"]
    replays = [case for case in stored if case["kind"] == "shadow"]
    lines = ["## Forecasts of the next forty rounds", "", *table(forecasts), ""]
    lines += ["## Replays under other methods", "", *shadow_table(replays), ""] if replays else []
    write_text(options.out / "twin.md", "\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
