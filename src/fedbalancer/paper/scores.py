"""The long tables of an item: scores of the runs in the pool, and the values in their rows.

`scores` has a row per seed, method and target; `methods` a row per method and target, over seeds; `curves` the accuracy
over the budget. A group is a set of methods that are scored against the same reference: the best FedAvg variant among
them, or the first method.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from fedbalancer.core.types import FloatArray
from fedbalancer.paper.item import Measured, Work
from fedbalancer.paper.pool import Key, TaskPool
from fedbalancer.reporting import Comparison, MethodScore, RunCurve, Score, SeedScore, score
from fedbalancer.reporting.clients import Fairness
from fedbalancer.reporting.comparison import run_speedup
from fedbalancer.reporting.ratio import Estimate

POINTS = 60
"""Number of points of a curve."""
CURVES = {"task": pl.String, "method": pl.String} | dict.fromkeys(("share", "accuracy", "low", "high"), pl.Float64)
_COSTS = ("sample_passes", "device_s", "down_bytes", "up_bytes")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Group:
    """Methods that are scored together.

    Args:
        name: Name of the group.
        methods: The methods.
    """

    name: str
    methods: tuple[str, ...]


@dataclass(frozen=True)
class ScoredTask:
    """The scores of one task.

    Args:
        frames: The tables by name.
        by_group: The scores from which they are made, by group.
    """

    frames: dict[str, pl.DataFrame]
    by_group: Mapping[str, Comparison]


def score_groups(work: Work, groups: Sequence[Group]) -> ScoredTask:
    """Execute the missing runs of all groups and score them.

    Args:
        work: The task and its request; failures are added to its notes.
        groups: The groups of methods.

    Raises:
        FedBalancerError: If a method or a setting is invalid.
        Stopped: If the user asked to stop.
    """
    methods = list(dict.fromkeys(method for group in groups for method in group.methods))
    pool = TaskPool.make(work.request, work.task, methods)
    outcomes = pool.complete(partial(_unreached_targets, pool, groups), work.listen, work.stopped)
    work.notes.extend(f"{m} seed {s} failed: {e.why}" for (m, s), e in outcomes.items() if e.kind == "failed")
    by_group = _score(pool, groups)
    work.notes.extend(dict.fromkeys(note for comparison in by_group.values() for note in comparison.notes))
    common = {"scale": pool.plan.base.scale, "clients": len(pool.plan.task.sizes)}
    curves = [pool.read_run(*key).curve for key in pool.specs]
    return ScoredTask(make_frames(by_group, curves, pool.budgets_s, common), by_group)


def make_frames(
    by_group: Mapping[str, Comparison], curves: Sequence[RunCurve], budgets_s: Mapping[int, float],
    common: Mapping[str, Any],
) -> dict[str, pl.DataFrame]:  # fmt: skip
    """Make the tables `scores`, `methods` and `curves`.

    Args:
        by_group: Scores by group.
        curves: The runs.
        budgets_s: Time budget by seed.
        common: Values for every row of the scores.
    """
    seeds: list[dict[str, Any]] = []
    methods: list[dict[str, Any]] = []
    task = ""
    for name, comparison in by_group.items():
        task = comparison.task
        shared = {"task": task, "variant": comparison.variant, **common, "group": name, "rule": comparison.rule}
        seeds += [row for seed in comparison.seeds for run in seed.scores for row in _seed_rows(shared, seed, run)]
        scored = [method for method in comparison.methods if method.scores]
        methods += [row for method in scored for row in _method_rows(shared, comparison, method)]
    return {
        "scores": pl.DataFrame(seeds, infer_schema_length=None),
        "methods": pl.DataFrame(methods, infer_schema_length=None),
        "curves": _curves(task, curves, budgets_s),
    }


def estimate_columns(name: str, estimate: Estimate) -> dict[str, Any]:
    """Return an estimate as columns. A ratio also has its bound and the p-value of its test.

    Args:
        name: Prefix of the columns.
        estimate: The estimate.
    """
    values = {
        name: estimate.mean, f"{name}_std": estimate.std, f"{name}_low": estimate.low, f"{name}_high": estimate.high,
    }  # fmt: skip
    return {**values, f"{name}_bound": getattr(estimate, "bound", ""), f"{name}_p": getattr(estimate, "p", None)}


def full_target(methods: pl.DataFrame) -> pl.DataFrame:
    """Return the rows about the whole target, without those about a share of it."""
    return methods.filter(pl.col("target_share") == 1.0)


def list_rows(methods: pl.DataFrame) -> Iterator[Row]:
    """Yield the rows about the whole target."""
    return full_target(methods).iter_rows(named=True)


def read_speedup(row: Row) -> Measured:
    """Read the speed-up of a row; by the paper's rule, there is none if the target was never reached."""
    if row["rule"] == "paper" and not row["reached"]:
        return Measured(None)
    low = None if row["ratio_low"] is None else max(row["ratio_low"], 0.0)
    return Measured(row["ratio"], low, row["ratio_high"], row["ratio_bound"])


def read_accuracy(row: Row) -> Measured:
    """Read the accuracy of a row; its interval is cut at 0 and 1, which it can exceed with few seeds."""
    if row["accuracy_low"] is None:
        return Measured(row["accuracy"])
    return Measured(row["accuracy"], max(row["accuracy_low"], 0.0), min(row["accuracy_high"], 1.0))


def _score(pool: TaskPool, groups: Sequence[Group]) -> dict[str, Comparison]:
    """Score every group, with the canonical names of its methods."""
    plan, scored = pool.plan, {}
    canonical = dict(zip(dict.fromkeys(m for g in groups for m in g.methods), plan.method_names, strict=True))
    for group in groups:
        names = [canonical[method] for method in group.methods]
        curves = [pool.read_run(method, seed).curve for method in names for seed in plan.seeds]
        scored[group.name] = score(
            curves, pool.budgets_s, methods=names, rule=pool.request.rule, task=plan.task.name,
            variant=plan.task.variant, rounds=plan.rounds,
        )  # fmt: skip
    return scored


def _unreached_targets(pool: TaskPool, groups: Sequence[Group]) -> dict[Key, float]:
    """Return the runs that did not reach the target of their seed, with their highest target."""
    targets: dict[Key, float] = {}
    for comparison in _score(pool, groups).values() if pool.plan.extend > 1 else ():
        for seed in comparison.seeds:
            for run in seed.scores:
                if run.time_s is None:
                    key = (run.method, run.seed)
                    targets[key] = max(seed.target, targets.get(key, 0.0))
    return targets


def _seed_rows(shared: Mapping[str, Any], seed: SeedScore, run: Score) -> Iterable[dict[str, Any]]:
    fairness = run.fairness or Fairness()
    for share, reach in run.reaches.items():
        yield {
            **shared, "method": run.method, "seed": run.seed, "target_share": share, "target": reach.target,
            "reference": seed.reference, "budget_s": seed.budget_s,
            "time_s": reach.arrival.seconds if reach.arrival.reached else None,
            "censored": not reach.arrival.reached, "censored_s": reach.arrival.seconds,
            "touch_s": reach.touch.seconds if reach.touch.reached else None,
            "reference_s": reach.reference.seconds, "reference_reached": reach.reference.reached,
            "ratio": run_speedup(reach, shared["rule"])[0], "accuracy": run.accuracy,
            **asdict(reach.cost), **{f"budget_{part}": getattr(run.cost, part) for part in _COSTS},
            **_fairness_columns(fairness),
        }  # fmt: skip


def _method_rows(shared: Mapping[str, Any], comparison: Comparison, method: MethodScore) -> Iterable[dict[str, Any]]:
    for share in method.targets:
        at = method.at(share)
        ratio = method.speedup if share == method.targets[0] else at.ratio
        yield {
            **shared, "method": method.method, "target_share": share, "target": at.target, "seeds": at.runs,
            "reached": at.reached, "budget_s": comparison.budget_s, "median_s": at.median_s, "above_s": at.above_s,
            **estimate_columns("ratio", ratio), **estimate_columns("touch_ratio", at.touch),
            **estimate_columns("accuracy", method.accuracy), **asdict(at.cost),
            **_fairness_columns(method.fairness),
        }  # fmt: skip


def _fairness_columns(fairness: Fairness) -> dict[str, Any]:
    return {
        "client_median": fairness.median, "client_worst_decile": fairness.worst_decile, "client_jain": fairness.jain,
        "places_gini": fairness.gini, "never_selected": fairness.never,
    }  # fmt: skip


def _curves(task: str, curves: Sequence[RunCurve], budgets_s: Mapping[int, float]) -> pl.DataFrame:
    """Return the accuracy over the share of each seed's budget (mean, lowest and highest seed), on a common grid."""
    shares = np.linspace(0.0, 1.0, POINTS + 1)
    rows = []
    for method in dict.fromkeys(curve.method for curve in curves):
        seeds = [curve for curve in curves if curve.method == method and curve.seed in budgets_s]
        values = [line for curve in seeds if (line := _interpolate(curve, budgets_s[curve.seed], shares)) is not None]
        if values:
            lines = zip(shares, np.mean(values, axis=0), np.min(values, axis=0), np.max(values, axis=0), strict=True)
            rows += [(task, method, *map(float, line)) for line in lines]
    return pl.DataFrame(rows, schema=CURVES, orient="row")


def _interpolate(curve: RunCurve, budget_s: float, shares: FloatArray) -> FloatArray | None:
    evals = (curve.grid if curve.grid is not None and curve.has_grid else curve.evals).drop_nulls("accuracy")
    if not evals.height:
        return None
    ordered = evals.sort("clock_s")
    return np.asarray(np.interp(shares, ordered["clock_s"].to_numpy() / budget_s, ordered["accuracy"].to_numpy()))
