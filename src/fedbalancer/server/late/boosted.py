"""REFL: late reports count by age and by how much they differ."""

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
    """Return how far each stale update u_s would move the mean u of the n fresh updates.

    The distance is |u - (n u + u_s) / (n + 1)|^2 / |u|^2.

    Args:
        fresh: Reports of this round.
        stale: Late reports.

    Returns:
        One value per stale report; zeros if there is no fresh update or their mean is 0.
    """
    mean = mean_update(fresh) if fresh else np.zeros(1)
    length = float(np.dot(mean, mean))
    if not length:
        return [0.0] * len(stale)
    apart = (mean - report.update for report in stale)
    return [float(np.dot(each, each)) / ((len(fresh) + 1) ** 2 * length) for each in apart]


@dataclass(frozen=True)
class Boosted(LatePolicy):
    """REFL's staleness-aware aggregation: a late report counts by its age and by how much it differs from the others.

    It joins the round in which it arrives with the weight (1 - beta) / (1 + tau) + beta (1 - e^(-L / Lmax)) relative to
    a fresh report. tau is its age in rounds, L how far it would move the mean of the fresh updates (`deviations`), and
    Lmax the largest L. Reports that differ may hold data that no other client has (Abdelmoniem et al., "REFL:
    Resource-Efficient Federated Learning", EuroSys 2023).

    Weights multiply the clients' numbers of trained samples. Without fresh reports, only the age counts.

    Args:
        beta: Share of the weight that depends on the difference, from 0 to below 1.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("refl").late
        Boosted(beta=0.35)
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
        """Return the weight of a stale report relative to a fresh one.

        Example:
            >>> Boosted().scale(1, 0.0), Boosted(beta=0.0).scale(3, 1.0)
            (0.325, 0.25)
        """
        return (1 - self.beta) / (1 + staleness) + self.beta * boost
