"""Robust aggregation: coordinate-wise median and trimmed mean, Krum, and centred clipping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.fields import AtLeastOne, BelowHalf, Count, Weight
from fedbalancer.core.types import ClientReport, FloatArray, ServerState, Setup, Weights
from fedbalancer.core.wrapping import Wrapping
from fedbalancer.server.aggregate.mean import WeightedMean, mean_update, sort_by_client
from fedbalancer.server.report_check import loss_increase_ratio


@dataclass(frozen=True)
class Median(Aggregator):
    """Coordinate-wise median: each parameter moves by the median of the clients' updates.

    A minority of clients cannot move a parameter far. All clients count equally (Yin et al., "Byzantine-Robust
    Distributed Learning: Towards Optimal Statistical Rates", ICML 2018).

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t+median").aggregate
        Median()
    """

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, None]:
        updates = np.stack([report.update for report in sort_by_client(reports)])
        return (state.weights + np.median(updates, axis=0)).astype(np.float32), None


@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    """Coordinate-wise trimmed mean: drops the lowest and highest int(beta n) values of each parameter.

    All clients count equally (Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
    ICML 2018).

    Args:
        beta: Share of the n updates to drop at each end.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t+trimmedmean").aggregate
        TrimmedMean(beta=0.2)
    """

    beta: BelowHalf = 0.2

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, None]:
        updates = np.stack([report.update for report in sort_by_client(reports)])
        cut = int(self.beta * len(updates))
        if cut:
            updates = np.partition(updates, (cut, len(updates) - cut - 1), axis=0)[cut : len(updates) - cut]
        return (state.weights + updates.mean(axis=0, dtype=np.float64)).astype(np.float32), None


@dataclass(frozen=True)
class Krum(Aggregator):
    """Krum: average the updates that are closest to their neighbours.

    The score of an update is the sum of its squared distances to its n - f - 2 nearest neighbours (at least one). The
    `keep` updates with the lowest scores are averaged; ties go to the smaller client id (Blanchard et al., "Machine
    Learning with Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017).

    Args:
        malicious: Assumed share of malicious clients; f is this share of n.
        keep: Number of updates to average: 1 for Krum, more for Multi-Krum.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t+krum").aggregate
        Krum(malicious=0.2, keep=1)
    """

    malicious: BelowHalf = 0.2
    keep: Count = 1

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, None]:
        ordered = sort_by_client(reports)
        scores = krum_scores(np.stack([report.update for report in ordered]), int(self.malicious * len(ordered)))
        kept = [ordered[row] for row in np.argsort(scores, kind="stable")[: self.keep]]
        return (state.weights + mean_update(kept)).astype(np.float32), None


def krum_scores(updates: Weights, malicious: int) -> FloatArray:
    """Return each update's sum of squared distances to its n - f - 2 nearest neighbours.

    Args:
        updates: One row per client.
        malicious: Assumed number of malicious clients, f.

    Returns:
        One score per row.

    Example:
        >>> krum_scores(np.array([[0.0], [1.0], [3.0], [9.0]], dtype=np.float32), malicious=1)
        array([ 1.,  1.,  4., 36.])
    """
    distances = np.array([((updates - one).astype(np.float64) ** 2).sum(axis=1) for one in updates])
    nearest = max(len(updates) - malicious - 2, 1)
    return np.asarray(np.sort(distances, axis=1)[:, 1 : nearest + 1].sum(axis=1))


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
            client: f"an update of norm {norm:g}, which must be at most {longest:g}: {self.most_norm:g} times the usual"
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
