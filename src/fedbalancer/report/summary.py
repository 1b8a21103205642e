"""The scores as JSON: summary.json, and what `compare --json` prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fedbalancer.report.estimate import Estimate
from fedbalancer.report.ratio import Ratio
from fedbalancer.report.values import Comparison, MethodScore, Score, SeedScore, TargetScore


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """All of a comparison's scores."""
    return {
        "target": comparison.target,
        "budget_s": comparison.budget_s,
        "rule": comparison.rule,
        "targets": list(comparison.targets),
        "methods": {method.method: _method(method) for method in comparison.methods},
        "seeds": len(comparison.seeds),
        "per_seed": [_seed(seed) for seed in comparison.seeds],
    }


def _method(method: MethodScore) -> dict[str, Any]:
    means = {"accuracy": method.accuracy, "down_bytes": method.down_bytes, "up_bytes": method.up_bytes}
    return {
        "speedup": _speedup(method),
        **{name: _mean_and_std(found) for name, found in means.items()},
        "targets": {f"{share:g}": _target(method.at(share)) for share in method.targets},
        "cost": asdict(method.cost),
        "clients": {name: value for name, value in asdict(method.fairness).items() if name != "places"},
    }


def _speedup(method: MethodScore) -> dict[str, Any]:
    """The mean, and under "bound" whether it is one: it has that key only then."""
    found = method.speedup
    bound = {"bound": found.bound} if isinstance(found, Ratio) and found.bound else {}
    numbers = {"mean": found.mean, "std": found.std, "low": found.low, "high": found.high}
    return {**numbers, "reached": method.reached, **bound}


def _mean_and_std(found: Estimate) -> dict[str, float | None]:
    return {"mean": found.mean, "std": found.std}


def _target(found: TargetScore) -> dict[str, Any]:
    return {
        "target": found.target,
        "median_s": found.median_s,
        "above_s": found.above_s,
        "ratio": asdict(found.ratio),
        "touch_ratio": asdict(found.touch),
        "reached": found.reached,
        "runs": found.runs,
        "cost": asdict(found.cost),
    }


def _seed(seed: SeedScore) -> dict[str, Any]:
    return {
        "seed": seed.seed,
        "target": seed.target,
        "budget_s": seed.budget_s,
        "reference": seed.reference,
        "methods": {score.method: _score(score) for score in seed.scores},
    }


def _score(score: Score) -> dict[str, Any]:
    times = {
        f"{share:g}": {"seconds": reach.arrival.seconds, "reached": reach.arrival.reached,
                       "touch_s": reach.touch.seconds if reach.touch.reached else None}
        for share, reach in score.reaches.items()
    }  # fmt: skip
    fairness = {} if score.fairness is None else {"clients": asdict(score.fairness)}
    return {
        "time_s": score.time_s, "speedup": score.speedup, "bound": score.bound, "accuracy": score.accuracy,
        "times": times, "cost": asdict(score.cost), **fairness,
    }  # fmt: skip
