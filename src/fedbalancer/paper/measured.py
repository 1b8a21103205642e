"""From the runs in the pool to the long tables of an item.

`scores` has a row per seed, method and target; `methods` one per method and target, over seeds; `curves` the accuracy
over the budget. A group is a set of methods that are scored against one reference: the best FedAvg variant among them,
or else the first that is listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from fedbalancer.paper.item import Work
from fedbalancer.paper.pool import Key, TaskPool
from fedbalancer.reporting import Comparison, MethodScore, RunCurve, Score, SeedScore, score
from fedbalancer.reporting.clients import Fairness
from fedbalancer.reporting.comparison import run_speedup
from fedbalancer.reporting.ratio import Estimate
from fedbalancer.types import FloatArray

POINTS = 60
"""Points of a drawn curve."""
CURVES = {"task": pl.String, "method": pl.String} | dict.fromkeys(("share", "accuracy", "low", "high"), pl.Float64)
_COSTS = ("sample_passes", "device_s", "down_bytes", "up_bytes")


@dataclass(frozen=True)
class Group:
    """Methods that are scored together."""

    name: str
    methods: tuple[str, ...]


@dataclass(frozen=True)
class Scored:
    """Tables of one task, and the scores that they were made of, by group."""

    frames: dict[str, pl.DataFrame]
    by_group: Mapping[str, Comparison]


def measured(work: Work, groups: Sequence[Group]) -> Scored:
    """Make what is missing of the runs of all groups, and score them."""
    methods = list(dict.fromkeys(method for group in groups for method in group.methods))
    pool = TaskPool.make(work.request, work.task, methods)
    outcomes = pool.complete(partial(_unreached, pool, groups), work.listen, work.stopped)
    work.notes.extend(f"{m} seed {s} failed: {e.why}" for (m, s), e in outcomes.items() if e.kind == "failed")
    by_group = _scored(pool, groups)
    work.notes.extend(dict.fromkeys(note for comparison in by_group.values() for note in comparison.notes))
    common = {"scale": pool.plan.base.scale, "clients": len(pool.plan.task.sizes)}
    curves = [pool.stored(*key).curve for key in pool.specs]
    return Scored(frames_of(by_group, curves, pool.budgets_s, common), by_group)


def frames_of(
    by_group: Mapping[str, Comparison], curves: Sequence[RunCurve], budgets_s: Mapping[int, float],
    common: Mapping[str, Any],
) -> dict[str, pl.DataFrame]:  # fmt: skip
    """The tables; `common` stands in every row of the scores."""
    seeds: list[dict[str, Any]] = []
    methods: list[dict[str, Any]] = []
    task = ""
    for name, found in by_group.items():
        task = found.task
        shared = {"task": task, "variant": found.variant, **common, "group": name, "rule": found.rule}
        seeds += [row for seed in found.seeds for one in seed.scores for row in _seed_rows(shared, seed, one)]
        methods += [row for method in found.methods if method.scores for row in _method_rows(shared, found, method)]
    return {
        "scores": pl.DataFrame(seeds, infer_schema_length=None),
        "methods": pl.DataFrame(methods, infer_schema_length=None),
        "curves": _curves(task, curves, budgets_s),
    }


def estimate_columns(name: str, found: Estimate) -> dict[str, Any]:
    """An estimate as columns; a ratio brings its bound and the p-value of its test."""
    values = {name: found.mean, f"{name}_std": found.std, f"{name}_low": found.low, f"{name}_high": found.high}
    return {**values, f"{name}_bound": getattr(found, "bound", ""), f"{name}_p": getattr(found, "p", None)}


def _scored(pool: TaskPool, groups: Sequence[Group]) -> dict[str, Comparison]:
    """The scores of every group. Its methods have the one spelling of their names."""
    plan, scored = pool.plan, {}
    spelt = dict(zip(dict.fromkeys(m for g in groups for m in g.methods), plan.method_names, strict=True))
    for group in groups:
        names = [spelt[method] for method in group.methods]
        curves = [pool.stored(method, seed).curve for method in names for seed in plan.seeds]
        scored[group.name] = score(
            curves, pool.budgets_s, methods=names, rule=pool.request.rule, task=plan.task.name,
            variant=plan.task.variant, rounds=plan.rounds,
        )  # fmt: skip
    return scored


def _unreached(pool: TaskPool, groups: Sequence[Group]) -> dict[Key, float]:
    """The runs that did not reach the target of their seed, with the highest that is asked of them."""
    wanted: dict[Key, float] = {}
    for comparison in _scored(pool, groups).values() if pool.plan.extend > 1 else ():
        for seed in comparison.seeds:
            for one in seed.scores:
                if one.time_s is None:
                    key = (one.method, one.seed)
                    wanted[key] = max(seed.target, wanted.get(key, 0.0))
    return wanted


def _seed_rows(shared: Mapping[str, Any], seed: SeedScore, one: Score) -> Iterable[dict[str, Any]]:
    fair = one.fairness or Fairness()
    for share, reach in one.reaches.items():
        yield {
            **shared, "method": one.method, "seed": one.seed, "target_share": share, "target": reach.target,
            "reference": seed.reference, "budget_s": seed.budget_s,
            "time_s": reach.arrival.seconds if reach.arrival.reached else None,
            "censored": not reach.arrival.reached, "censored_s": reach.arrival.seconds,
            "touch_s": reach.touch.seconds if reach.touch.reached else None,
            "reference_s": reach.reference.seconds, "reference_reached": reach.reference.reached,
            "ratio": run_speedup(reach, shared["rule"])[0], "accuracy": one.accuracy,
            **asdict(reach.cost), **{f"budget_{part}": getattr(one.cost, part) for part in _COSTS},
            "client_median": fair.median, "client_worst_decile": fair.worst_decile, "client_jain": fair.jain,
            "places_gini": fair.gini, "never_selected": fair.never,
        }  # fmt: skip


def _method_rows(shared: Mapping[str, Any], found: Comparison, method: MethodScore) -> Iterable[dict[str, Any]]:
    fair = method.fairness
    for share in method.targets:
        at = method.at(share)
        ratio = method.speedup if share == method.targets[0] else at.ratio
        yield {
            **shared, "method": method.method, "target_share": share, "target": at.target, "seeds": at.runs,
            "reached": at.reached, "budget_s": found.budget_s, "median_s": at.median_s, "above_s": at.above_s,
            **estimate_columns("ratio", ratio), **estimate_columns("touch_ratio", at.touch),
            **estimate_columns("accuracy", method.accuracy), **asdict(at.cost),
            "client_median": fair.median, "client_worst_decile": fair.worst_decile, "client_jain": fair.jain,
            "places_gini": fair.gini, "never_selected": fair.never,
        }  # fmt: skip


def _curves(task: str, curves: Sequence[RunCurve], budgets_s: Mapping[int, float]) -> pl.DataFrame:
    """Accuracy over the share of each seed's budget: mean, least and most of the seeds, on one grid for all methods."""
    shares = np.linspace(0.0, 1.0, POINTS + 1)
    rows = []
    for method in dict.fromkeys(curve.method for curve in curves):
        mine = [curve for curve in curves if curve.method == method and curve.seed in budgets_s]
        values = [line for curve in mine if (line := _on_grid(curve, budgets_s[curve.seed], shares)) is not None]
        if values:
            lines = zip(shares, np.mean(values, axis=0), np.min(values, axis=0), np.max(values, axis=0), strict=True)
            rows += [(task, method, *map(float, line)) for line in lines]
    return pl.DataFrame(rows, schema=CURVES, orient="row")


def _on_grid(curve: RunCurve, budget_s: float, shares: FloatArray) -> FloatArray | None:
    evals = (curve.grid if curve.grid is not None and curve.has_grid else curve.evals).drop_nulls("accuracy")
    if not evals.height:
        return None
    ordered = evals.sort("clock_s")
    return np.asarray(np.interp(shares, ordered["clock_s"].to_numpy() / budget_s, ordered["accuracy"].to_numpy()))
