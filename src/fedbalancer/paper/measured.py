"""From the runs in the pool to the long tables of an item: one row per seed and target, one row per method and target.

A group is a set of methods that are scored against one reference: the best FedAvg variant among them, or else the first
that is listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from fedbalancer.paper.item import Work
from fedbalancer.paper.pool import Key, TaskPool
from fedbalancer.report import Comparison, RunCurve, score
from fedbalancer.runs.jobs import JobEvent
from fedbalancer.types import FloatArray

POINTS = 60
"""Points of a drawn curve."""
CURVES = {"task": pl.String, "method": pl.String, "share": pl.Float64} | dict.fromkeys(
    ("accuracy", "low", "high"), pl.Float64
)


@dataclass(frozen=True)
class Group:
    """Methods that are scored together."""

    name: str
    methods: tuple[str, ...]


def measured(work: Work, groups: Sequence[Group]) -> dict[str, pl.DataFrame]:
    """Make what is missing of the runs of all groups, and score them."""
    methods = list(dict.fromkeys(method for group in groups for method in group.methods))
    pool = TaskPool.make(work.request, work.task, methods)
    outcomes = pool.complete(partial(_unreached, pool, groups), work.listen, work.stopped)
    work.notes.extend(_failures(outcomes))
    return tables(pool, groups)


def tables(pool: TaskPool, groups: Sequence[Group]) -> dict[str, pl.DataFrame]:
    """The tables of what the pool holds: `scores` (by seed), `methods` (over seeds) and `curves`."""
    seeds, methods = [], []
    for group in groups:
        comparison = scored(pool, group)
        seeds += _seed_rows(pool, group, comparison)
        methods += _method_rows(pool, group, comparison)
    names = dict.fromkeys(method for group in groups for method in group.methods)
    return {"scores": pl.DataFrame(seeds), "methods": pl.DataFrame(methods), "curves": _curves(pool, list(names))}


def scored(pool: TaskPool, group: Group) -> Comparison:
    """The scores of a group."""
    return score(
        _group_curves(pool, group), pool.budgets_s, methods=group.methods, task=pool.plan.task.name,
        variant=pool.plan.task.variant, rounds=pool.plan.rounds,
    )  # fmt: skip


def _group_curves(pool: TaskPool, group: Group) -> list[RunCurve]:
    return [pool.stored(method, seed).curve for method in group.methods for seed in pool.plan.seeds]


def _unreached(pool: TaskPool, groups: Sequence[Group]) -> dict[Key, float]:
    """The runs that did not reach the target of their seed, with the highest that is asked of them."""
    if pool.plan.extend <= 1:
        return {}
    wanted: dict[Key, float] = {}
    for group in groups:
        comparison = scored(pool, group)
        for seed in comparison.seeds:
            for one in seed.scores:
                if one.time_s is None:
                    key = (one.method, one.seed)
                    wanted[key] = max(seed.target, wanted.get(key, 0.0))
    return wanted


def _failures(outcomes: dict[Key, JobEvent]) -> list[str]:
    return [f"{m} seed {s} failed: {event.why}" for (m, s), event in outcomes.items() if event.kind == "failed"]


def _common(pool: TaskPool, group: Group) -> dict[str, Any]:
    return {
        "task": pool.plan.task.name, "scale": pool.plan.base.scale, "variant": pool.plan.task.variant,
        "clients": len(pool.plan.task.sizes), "group": group.name, "rule": pool.request.rule, "target_share": 1.0,
    }  # fmt: skip


def _seed_rows(pool: TaskPool, group: Group, comparison: Comparison) -> list[dict[str, Any]]:
    return [
        {
            **_common(pool, group), "method": one.method, "seed": one.seed, "target": seed.target,
            "reference": seed.reference, "budget_s": seed.budget_s, "time_s": one.time_s,
            "censored": one.time_s is None, "ratio": one.speedup, "accuracy": one.accuracy,
            "down_bytes": one.down_bytes, "up_bytes": one.up_bytes,
        }
        for seed in comparison.seeds
        for one in seed.scores
    ]  # fmt: skip


def _method_rows(pool: TaskPool, group: Group, comparison: Comparison) -> list[dict[str, Any]]:
    return [
        {
            **_common(pool, group), "method": method.method, "seeds": len(method.scores), "reached": method.reached,
            "budget_s": comparison.budget_s, "target": comparison.target,
            "ratio": method.speedup.mean, "ratio_std": method.speedup.std, "ratio_low": method.speedup.low,
            "ratio_high": method.speedup.high, "accuracy": method.accuracy.mean, "accuracy_std": method.accuracy.std,
            "accuracy_low": method.accuracy.low, "accuracy_high": method.accuracy.high,
        }
        for method in comparison.methods
    ]  # fmt: skip


def _curves(pool: TaskPool, methods: Sequence[str]) -> pl.DataFrame:
    """Accuracy over the share of each seed's budget: mean, least and most of the seeds, on one grid for all methods."""
    shares = np.linspace(0.0, 1.0, POINTS + 1)
    rows = []
    for method in methods:
        values = [line for seed in pool.plan.seeds if (line := _on_grid(pool, method, seed, shares)) is not None]
        if values:
            lines = zip(shares, np.mean(values, axis=0), np.min(values, axis=0), np.max(values, axis=0), strict=True)
            rows += [(pool.plan.task.name, method, *map(float, line)) for line in lines]
    return pl.DataFrame(rows, schema=CURVES, orient="row")


def _on_grid(pool: TaskPool, method: str, seed: int, shares: FloatArray) -> FloatArray | None:
    evals = pool.stored(method, seed).curve.evals.drop_nulls("accuracy").sort("clock_s")
    if not evals.height:
        return None
    clock = evals["clock_s"].to_numpy() / pool.budgets_s[seed]
    return np.asarray(np.interp(shares, clock, evals["accuracy"].to_numpy()))
