"""Centred clipping of updates before aggregation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.fields import AtLeastOne, Weight
from fedbalancer.core.types import ClientReport, FloatArray, ServerState, Setup, Weights
from fedbalancer.core.wrapping import Wrapping
from fedbalancer.server.aggregate.mean import WeightedMean, mean_update, sort_by_client
from fedbalancer.server.loss_increase_ratio import loss_increase_ratio

NORM_ROUNDS = 5
"""Number of recent rounds whose median norms define the usual norm of an update."""
MIN_NORMS = 3
"""Minimum number of updates for the current round's median to count."""


@dataclass(frozen=True, eq=False)
class ClippedState:
    """State of `ClippedAround`.

    Args:
        inner: State of the wrapped policy.
        center: The last step; empty before the first.
        norms: Median update norms of recent rounds.
    """

    inner: Any
    center: FloatArray = field(default_factory=lambda: np.zeros(0))
    norms: tuple[float, ...] = ()


@dataclass(frozen=True)
class ClippedAround(Wrapping, Aggregator):
    """Ours, used by `+robust`: centred clipping before another aggregator.

    Each update is moved towards the last step until its distance is at most the median distance. A client's weight is
    at most `most_weight` times the median weight. A client whose loss is higher than in its first report counts for
    less. The wrapped aggregator then combines the results.

    An update longer than `most_norm` times the usual norm of this and recent rounds is rejected (`cohort_faults`), and
    its client is suspended.

    Centred clipping: Karimireddy, He and Jaggi, "Learning from History for Byzantine Robust Optimization", ICML 2021.
    Differences from that paper: the radius is the cohort's median distance instead of a constant; there is one pass;
    the centre is the last step instead of a momentum.

    Args:
        inner: The wrapped aggregator.
        most_norm: Longest accepted update, as a multiple of the usual norm.
        most_weight: Largest weight, as a multiple of the median weight.
        worse_power: A client whose loss grew by the factor r since its first report has its weight divided by
            r^worse_power. 0: no discount.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedbalancer+robust").aggregate
        ClippedAround(inner=WeightedMean(), most_norm=10.0, most_weight=3.0, worse_power=4.0)
    """

    inner: Aggregator = field(default_factory=WeightedMean)
    most_norm: AtLeastOne = 10.0
    most_weight: AtLeastOne = 3.0
    worse_power: Weight = 4.0

    def init(self, setup: Setup) -> ClippedState:
        return ClippedState(self.inner.init(setup))

    def cohort_faults(self, state: ServerState, reports: Sequence[ClientReport]) -> Mapping[str, str]:
        """Return the clients whose updates are much longer than usual, in addition to the wrapped policy's faults."""
        faults = dict(self.inner.cohort_faults(self.unwrapped(state), reports))
        norms = {report.client: _norm(report.update) for report in reports}
        usual = [*state.aggregate.norms, *([float(np.median(list(norms.values())))] if len(norms) >= MIN_NORMS else [])]
        longest = self.most_norm * float(np.median(usual)) if usual else np.inf
        if longest == 0:
            return faults
        return faults | {
            client: f"an update of norm {norm:g}, which is at most {longest:g}: {self.most_norm:g} times the usual"
            for client, norm in norms.items()
            if norm > longest
        }

    def aggregate(
        self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]
    ) -> tuple[Weights, ClippedState]:
        own: ClippedState = state.aggregate
        if not reports:  # called because the wrapped policy adds noise in every round
            weights, inner = self.inner.aggregate(setup, self.unwrapped(state), reports)
            return weights, replace(own, inner=inner)
        ordered = self._clip(self._discount_worse(state, sort_by_client(reports)), own.center)
        weights, inner = self.inner.aggregate(setup, self.unwrapped(state), ordered)
        norm = float(np.median([_norm(report.update) for report in reports]))
        return weights, ClippedState(inner, mean_update(ordered), (*own.norms, norm)[-NORM_ROUNDS:])

    def _discount_worse(self, state: ServerState, reports: list[ClientReport]) -> list[ClientReport]:
        """Reduce the weight of clients whose loss has increased."""
        first = state.ledger.loss_first[state.ledger.rows(tuple(report.client for report in reports))]
        shares = loss_increase_ratio(first, [report.summary.loss_mean for report in reports]) ** -self.worse_power
        return [
            replace(report, weight=report.weight * share) if share < 1 else report
            for report, share in zip(reports, shares.tolist(), strict=True)
        ]

    def _clip(self, reports: list[ClientReport], center: FloatArray) -> list[ClientReport]:
        """Clip updates around the centre, and limit weights."""
        start = center if len(center) else np.zeros(reports[0].update.shape)
        distances = [_norm(report.update - start) for report in reports]
        radius = float(np.median(distances))
        heaviest = self.most_weight * float(np.median([report.weight for report in reports]))
        return [
            replace(
                report,
                update=_clip_towards(report.update, start, radius, distance),
                weight=min(report.weight, heaviest),
            )
            for report, distance in zip(reports, distances, strict=True)
        ]


def _clip_towards(update: Weights, start: FloatArray, radius: float, distance: float) -> Weights:
    """Return the update, moved towards the centre until it is at most `radius` away."""
    if distance <= radius:
        return update
    return (start + (update - start) * (radius / distance)).astype(np.float32)


def _norm(vector: Any) -> float:
    return float(np.linalg.norm(np.asarray(vector, dtype=np.float64)))
