"""REFL: a late report counts for its age, and for what it says that the others do not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedbalancer.core.contracts import LatePolicy, Private
from fedbalancer.core.types import ClientReport, LateRule, ServerState, Setup
from fedbalancer.server.aggregate.mean import mean_update


def deviations(fresh: Sequence[ClientReport], stale: Sequence[ClientReport]) -> list[float]:
    """How far each stale update would move the mean u of the n fresh ones: |u - (n u + u_s) / (n + 1)|^2 / |u|^2; none
    where there is nothing to move."""
    mean = mean_update(fresh) if fresh else np.zeros(1)
    length = float(np.dot(mean, mean))
    if not length:
        return [0.0] * len(stale)
    apart = (mean - report.update for report in stale)
    return [float(np.dot(each, each)) / ((len(fresh) + 1) ** 2 * length) for each in apart]


@dataclass(frozen=True)
class Boosted(LatePolicy):
    """Joins the round in which it comes with the weight (1 - beta) / (1 + tau) + beta (1 - e^(-L / Lmax)), where a
    report of the round itself has 1, tau are the rounds in between, L is how far the stale update would move the mean
    of the fresh ones, and Lmax the largest of these: old reports are damped, and those that differ from what is there
    are boosted, for they may be of data that nobody else has (Abdelmoniem et al., "REFL: Resource-Efficient Federated
    Learning", EuroSys 2023, Staleness-Aware Aggregation).

    These weights multiply the clients' trained samples, by which every mean here is weighted. Without a fresh report
    there is nothing to differ from, and only the age counts.
    """

    reacts_to: ClassVar[frozenset[Private]] = frozenset({"updates"})

    beta: float = 0.35

    def rule(self) -> LateRule:
        return "joins"

    def weighted(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> Sequence[ClientReport]:
        stale = [report for report in reports if report.staleness]
        if not stale:
            return reports
        moved = deviations([report for report in reports if not report.staleness], stale)
        most = max(moved) or 1.0
        boost = {each.client: 1 - math.exp(-far / most) for each, far in zip(stale, moved, strict=True)}
        scale = {each.client: self.scale(each.staleness, boost[each.client]) for each in stale}
        return [replace(each, weight=each.weight * scale.get(each.client, 1.0)) for each in reports]

    def refuses(self, method: Any) -> str | None:
        return None if 0 <= self.beta < 1 else f"Boosted(beta={self.beta}) must have a beta of at least 0, below 1"

    def scale(self, staleness: int, boost: float) -> float:
        """What a stale report is worth against a fresh one.

        >>> Boosted().scale(1, 0.0), Boosted(beta=0.0).scale(3, 1.0)
        (0.325, 0.25)
        """
        return (1 - self.beta) / (1 + staleness) + self.beta * boost
