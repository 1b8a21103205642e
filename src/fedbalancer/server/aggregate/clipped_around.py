"""Aggregation in which no update pulls further than most do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.types import ClientReport, FloatArray, ServerState, Setup, Weights
from fedbalancer.core.wrapping import Wrapping
from fedbalancer.server.aggregate.mean import WeightedMean, in_order, mean_update
from fedbalancer.server.loss_increase_ratio import loss_increase_ratio

REMEMBERED = 5
"""Rounds whose median norms say what an update is like."""
ENOUGH = 3
"""Norms that it takes for a median to mean anything."""


@dataclass(frozen=True, eq=False)
class ClippedState:
    """What the other policy remembers; the last step (empty before the first); the median norms of the last rounds."""

    inner: Any
    center: FloatArray = field(default_factory=lambda: np.zeros(0))
    norms: tuple[float, ...] = ()


@dataclass(frozen=True)
class ClippedAround(Wrapping, Aggregator):
    """Ours, for `+robust`: centred clipping (Karimireddy, He and Jaggi, "Learning from History for Byzantine Robust
    Optimization", ICML 2021) before another aggregation. Every update is drawn towards the last step until it is no
    further from it than the median update is, and no client weighs more than `most_weight` times the median client;
    what comes of that is aggregated as ever. A client whose loss is higher than when it first came counts for less, by
    the ratio of the two to the power of `worse_power` (0: for as much).

    Departures: the radius is the cohort's median distance in place of a constant; one pass; the step of the round
    before is the centre, where the paper keeps momentum. An update longer than `most_norm` times what was usual in this
    and the last rounds is not clipped but named and left out (`cohort_faults`), and its sender sits out.
    """

    inner: Aggregator = field(default_factory=WeightedMean)
    most_norm: float = 10.0
    most_weight: float = 3.0
    worse_power: float = 4.0

    def __post_init__(self) -> None:
        if not 0 <= self.worse_power < np.inf:
            raise ValueError(f"worse_power = {self.worse_power} must be a number of at least 0")
        if not (self.most_norm >= 1 and self.most_weight >= 1):
            raise ValueError(f"most_norm = {self.most_norm} and most_weight = {self.most_weight} must be at least 1")

    def init(self, setup: Setup) -> ClippedState:
        return ClippedState(self.inner.init(setup))

    def cohort_faults(self, state: ServerState, reports: Sequence[ClientReport]) -> Mapping[str, str]:
        """Updates that are far longer than usual, and what the wrapped policy finds."""
        found = dict(self.inner.cohort_faults(self.unwrapped(state), reports))
        norms = {report.client: _norm(report.update) for report in reports}
        usual = [*state.aggregate.norms, *([float(np.median(list(norms.values())))] if len(norms) >= ENOUGH else [])]
        most = self.most_norm * float(np.median(usual)) if usual else np.inf
        if most == 0:
            return found
        return found | {
            client: f"an update of norm {norm:g}, which is at most {most:g}: {self.most_norm:g} times the usual"
            for client, norm in norms.items()
            if norm > most
        }

    def aggregate(
        self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]
    ) -> tuple[Weights, ClippedState]:
        own: ClippedState = state.aggregate
        if not reports:  # the wrapped policy adds noise in every round
            weights, inner = self.inner.aggregate(setup, self.unwrapped(state), reports)
            return weights, replace(own, inner=inner)
        ordered = self._clipped(self._discounted(state, in_order(reports)), own.center)
        weights, inner = self.inner.aggregate(setup, self.unwrapped(state), ordered)
        norm = float(np.median([_norm(report.update) for report in reports]))
        return weights, ClippedState(inner, mean_update(ordered), (*own.norms, norm)[-REMEMBERED:])

    def _discounted(self, state: ServerState, reports: list[ClientReport]) -> list[ClientReport]:
        """With less weight for those for whom the model has become worse."""
        first = state.ledger.loss_first[state.ledger.rows(tuple(report.client for report in reports))]
        shares = loss_increase_ratio(first, [report.summary.loss_mean for report in reports]) ** -self.worse_power
        return [
            replace(report, weight=report.weight * share) if share < 1 else report
            for report, share in zip(reports, shares.tolist(), strict=True)
        ]

    def _clipped(self, reports: list[ClientReport], center: FloatArray) -> list[ClientReport]:
        around = center if len(center) else np.zeros(reports[0].update.shape)
        distances = [_norm(report.update - around) for report in reports]
        radius = float(np.median(distances))
        heaviest = self.most_weight * float(np.median([report.weight for report in reports]))
        return [
            replace(report, update=_drawn(report.update, around, radius, far), weight=min(report.weight, heaviest))
            for report, far in zip(reports, distances, strict=True)
        ]


def _drawn(update: Weights, around: FloatArray, radius: float, far: float) -> Weights:
    """The update, or the point on its way to the centre that is so near."""
    if far <= radius:
        return update
    return (around + (update - around) * (radius / far)).astype(np.float32)


def _norm(vector: Any) -> float:
    return float(np.linalg.norm(np.asarray(vector, dtype=np.float64)))
