"""Time to accuracy over many targets: when each method reached each share of the reference's final accuracy."""

from __future__ import annotations

import numpy as np

from fedbalancer.report.ratio import Arrival, median_s
from fedbalancer.report.rule import points
from fedbalancer.report.stored import Results
from fedbalancer.report.values import Comparison
from fedbalancer.types import FloatArray

SHARES = tuple(round(0.5 + 0.025 * step, 3) for step in range(25))
"""Targets from half of the reference's final accuracy to a tenth above it."""


def target_medians(results: Results, comparison: Comparison) -> dict[str, list[float | None]]:
    """By method, for each of `SHARES` the Kaplan-Meier median of the seconds; None where half of the runs never came
    there. The rule is the comparison's."""
    arrivals: dict[str, list[list[Arrival]]] = {}
    scored = {seed.seed: seed for seed in comparison.seeds}
    for curve in results.curves:
        seed = scored.get(curve.seed)
        if seed is None or curve.method not in {score.method for score in seed.scores}:
            continue
        found = points(curve, results.budgets_s[curve.seed], comparison.rule, comparison.stamp)
        found = found.filter(found["level"].is_not_null() & (found["clock_s"] > 0))
        at_s, level = (found[name].to_numpy().astype(np.float64) for name in ("at_s", "level"))
        final = seed.target / comparison.targets[0]
        arrivals.setdefault(curve.method, []).append([_arrival(at_s, level, s * final, curve.last_s) for s in SHARES])
    return {name: [median_s(list(each))[0] for each in zip(*runs, strict=True)] for name, runs in arrivals.items()}


def _arrival(at_s: FloatArray, level: FloatArray, target: float, last_s: float) -> Arrival:
    reached = np.flatnonzero(level >= target)
    return Arrival(float(at_s[reached[0]])) if len(reached) else Arrival(last_s, reached=False)
