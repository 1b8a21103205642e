"""A small comparison as a run leaves it: plausible curves, one run that failed, values that must be escaped."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

METHODS = ("fedavg+1t", "fedavg+wfa", "prox+1t", "oort", "fedbalancer")
SEEDS = (0, 1, 2)
ROUNDS = 50
NASTY = '<script>alert(1)</script> & "co"'
ROUND_S = {"fedavg+1t": 200, "fedavg+2t": 300, "fedavg+spc": 280, "fedavg+wfa": 330, "oort": 150, "fedbalancer": 160}
DEADLINE_S = {"fedavg+1t": 190.0, "fedavg+2t": 380.0, "prox+1t": 190.0, "sampleselection": 185.0}


def write_run(
    folder: Path, method: str, seed: int, *, budget_s: float = 10_000.0, status: str = "done", **more: object
) -> None:
    """A run folder with curves that rise and level off."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng([seed, *method.encode()])
    round_s = ROUND_S.get(method, 190)
    rounds = int(more.get("rounds") or budget_s * 1.25 / round_s)  # type: ignore[call-overload]
    seconds = round_s * rng.uniform(0.9, 1.1, rounds)
    end_s = np.cumsum(seconds)
    ours = method == "fedbalancer"
    deadline = 210 - 110 * (1 - np.exp(-np.arange(rounds) / 15)) + rng.normal(0, 6, rounds) if ours else None
    completed = np.minimum(5, rng.binomial(5, 0.55 if method == "fedavg+1t" else 0.96, rounds))
    pl.DataFrame({
        "round": np.arange(1, rounds + 1),
        "start_s": end_s - seconds,
        "end_s": end_s,
        "deadline_s": deadline if ours else np.full(rounds, DEADLINE_S.get(method, math.inf)),
        "loss_threshold": np.maximum(0, 0.02 * (np.arange(rounds) - 18) * rng.uniform(0.8, 1.2)) * ours,
        "loss_threshold_ratio": np.zeros(rounds),
        "deadline_ratio": np.ones(rounds),
        "selected": np.full(rounds, 5),
        "completed": completed,
        "samples": np.full(rounds, 1500),
        "epochs": np.full(rounds, 5.0),
        "utility": [None] * rounds,
    }, schema_overrides={"utility": pl.Float64}).write_parquet(folder / "rounds.parquet")  # fmt: skip
    at = np.arange(4, rounds, 5)
    speed = {"fedbalancer": 2600, "oort": 3000, "prox+1t": 3400}.get(method, 4000)
    accuracy = 0.62 + 0.26 * (1 - np.exp(-end_s[at] / speed)) + rng.normal(0, 0.012, len(at))
    pl.DataFrame({
        "round": at + 1, "start_s": (end_s - seconds)[at], "clock_s": end_s[at], "accuracy": accuracy,
        "loss": 1 - accuracy,
    }).write_parquet(folder / "evals.parquet")  # fmt: skip
    outcomes = np.where(rng.random(rounds * 5) < completed.mean() / 5, "completed", "train")
    outcomes[rng.random(rounds * 5) < 0.03] = "upload"
    pl.DataFrame(
        {"round": np.repeat(np.arange(1, rounds + 1), 5), "client": ["c"] * (rounds * 5), "outcome": outcomes}
    ).write_parquet(folder / "clients.parquet")
    manifest = {
        "status": status, "why": more.get("why"), "seed": seed, "method": method, "budget_s": budget_s,
        "task": {"name": "har", "variant": "synthetic", "scale": "small"},
        "settings": {"batch_size": 10, "epochs": 5, "pace": {"window": 20 if ours else None}, "note": NASTY},
        "versions": {"fedbalancer": "0.1.0", "python": "3.11"}, "started": "2024-05-01T12:00:00+00:00",
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def write_comparison(folder: Path, methods: tuple[str, ...] = METHODS, seeds: tuple[int, ...] = SEEDS) -> Path:
    """A comparison folder in which the last seed of prox+1t failed early."""
    folder.mkdir(parents=True, exist_ok=True)
    for method in methods:
        for seed in seeds:
            failed = method == "prox+1t" and seed == seeds[-1]
            state = {"status": "failed", "why": f"loss is nan {NASTY}", "rounds": 12} if failed else {}
            write_run(folder / method / f"seed-{seed}", method, seed, **state)  # type: ignore[arg-type]
    content = {
        "task": "har", "variant": "synthetic", "methods": methods, "seeds": seeds, "rounds": ROUNDS,
        "budgets_s": {str(seed): 10_000.0 + 300 * seed for seed in seeds},
    }  # fmt: skip
    (folder / "comparison.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def make_comparison() -> Callable[..., Path]:
    return write_comparison


@pytest.fixture
def comparison_folder(tmp_path: Path) -> Path:
    return write_comparison(tmp_path / "comparison")


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    write_run(tmp_path / "run", "fedbalancer", 3)
    return tmp_path / "run"
