"""Robust aggregation by what an attacker cannot fake cheaply: how its updates respond to the model over rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.fields import AtLeastOne, Count, Share
from fedbalancer.core.types import ClientReport, FloatArray, ServerState, Setup, Weights
from fedbalancer.core.wrapping import Wrapping
from fedbalancer.server.aggregate.mean import WeightedMean, sort_by_client

NORM_ROUNDS = 5
"""Number of recent rounds whose median norms define the usual norm of an update."""
MIN_NORMS = 3
"""Minimum number of updates for the current round's median to count."""
RESPONSES = 4
"""Number of a client's last responses whose mean is judged."""
TYPICAL = 100
"""Number of the cohorts' last responses, and of their crowds, whose median is typical."""
MIN_TYPICAL = 5
"""Minimum number of responses for their median to count. Before that, a response only has to be positive."""

LEAST_CHANGE = 1e-3
"""Smallest change of an update's direction that is a response; less is rounding."""


@dataclass(frozen=True, eq=False)
class CheckedState:
    """State of `CheckedUpdates`. Rows belong to the remembered clients, the least recent first.

    Args:
        inner: State of the wrapped policy.
        norms: Median update norms of recent rounds.
        clients: The remembered clients.
        directions: The last update of each, divided by its norm.
        received: The round of the model that each had received.
        model_rounds: The rounds of the remembered models.
        models: These models.
        responses: The last responses of each; NaN where there are fewer.
        typical_responses: The last responses of all clients.
        typical_crowds: The last crowds of all clients.
        refusals: How many times in a row the update of a client was refused; only clients with one.
    """

    inner: Any
    norms: tuple[float, ...] = ()
    clients: tuple[str, ...] = ()
    directions: Weights = field(default_factory=lambda: np.zeros((0, 0), dtype=np.float32))
    received: tuple[int, ...] = ()
    model_rounds: tuple[int, ...] = ()
    models: Weights = field(default_factory=lambda: np.zeros((0, 0), dtype=np.float32))
    responses: FloatArray = field(default_factory=lambda: np.zeros((0, RESPONSES)))
    typical_responses: tuple[float, ...] = ()
    typical_crowds: tuple[float, ...] = ()
    refusals: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Cohort:
    """The reports of a round with what is computed from them, one row per report."""

    reports: list[ClientReport]
    norms: FloatArray
    directions: Weights
    received: list[int | None]


@dataclass(frozen=True)
class CheckedUpdates(Wrapping, Aggregator):
    """Ours, used by `+robust`: counts updates that respond to the model as those of honest clients do.

    An honest client descends on the loss of its own data. When the model has moved by d between two of its rounds, its
    update changes by about -H d, where H is the curvature of its loss: it pulls against what moved the model away from
    its data. The *response* is the cosine of the change of its update, each divided by its norm, and -d. It is positive
    for every client with a convex loss, whatever its data. An update that ascends has a negative response, and one that
    does not depend on the model has none. To pass, an attacker must behave like a client with a loss of its own.

    - An update counts if the mean of its client's last four responses is from `least_response` to `most_response` times
      the typical one. A client without an earlier update counts.
    - Clients that push in the same direction share a weight. The *crowd* of a client is the sum of squared cosines of
      its update and those of all remembered clients, each minus their mean. A crowd over `most_alike` times the typical
      one divides the weight by the square of the excess.
    - Updates are clipped to `radius` times the median norm of those that count (of an even number the lower one), and
      weights to `most_weight` times the median weight. The wrapped aggregator then combines them.
    - An update longer than `most_norm` times the usual norm is rejected (`cohort_faults`), and its client is suspended.

    If no update counts, the model stays. Late updates of a model that is no longer remembered, and updates of a part of
    the model, are not checked for their response.

    Memory: the last update of `memory` clients, and one model per round in which they last reported; four bytes per
    parameter each. Time: two products of the cohort's and the remembered updates per round.

    The response is related to FLDetector, which predicts each update with an estimated Hessian (Zhang et al.,
    "FLDetector: Defending Federated Learning Against Model Poisoning Attacks via Detecting Malicious Clients", KDD
    2022). The crowd is related to FoolsGold, which compares sums of updates without subtracting their mean (Fung, Yoon
    and Beschastnikh, "The Limitations of Federated Learning in Sybil Settings", RAID 2020).

    Args:
        inner: The wrapped aggregator.
        radius: Longest update, as a multiple of the median norm.
        least_response: Lowest response, as a multiple of the typical one.
        most_response: Highest response, as a multiple of the typical one.
        most_alike: Largest crowd with full weight, as a multiple of the typical one.
        most_weight: Largest weight, as a multiple of the median weight.
        most_norm: Longest accepted update, as a multiple of the usual norm.
        memory: Number of remembered clients.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedbalancer+robust").aggregate.inner
        WeightedMean()
    """

    inner: Aggregator = field(default_factory=WeightedMean)
    radius: AtLeastOne = 1.25
    least_response: Share = 0.4
    most_response: AtLeastOne = 4.0
    most_alike: AtLeastOne = 1.5
    most_weight: AtLeastOne = 3.0
    most_norm: AtLeastOne = 10.0
    memory: Count = 200

    def init(self, setup: Setup) -> CheckedState:
        return CheckedState(self.inner.init(setup))

    def cohort_faults(self, state: ServerState, reports: Sequence[ClientReport]) -> Mapping[str, str]:
        """Return the clients whose updates are much longer than usual, in addition to the wrapped policy's faults."""
        faults = dict(self.inner.cohort_faults(self.unwrapped(state), reports))
        norms = {report.client: _norm(report.update) for report in reports}
        usual = [*state.aggregate.norms, *([_low_median(list(norms.values()))] if len(norms) >= MIN_NORMS else [])]
        longest = self.most_norm * _low_median(usual) if usual else np.inf
        if longest == 0:
            return faults
        return faults | {
            client: f"an update of norm {norm:g}, which must be at most {longest:g}: {self.most_norm:g} times the usual"
            for client, norm in norms.items()
            if norm > longest
        }

    def aggregate(
        self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]
    ) -> tuple[Weights, CheckedState]:
        own: CheckedState = state.aggregate
        if not reports:  # called because the wrapped policy adds noise in every round
            weights, inner = self.inner.aggregate(setup, self.unwrapped(state), reports)
            return weights, replace(own, inner=inner)
        cohort = _cohort(own, state, sort_by_client(reports))
        responses = _responses(own, state, cohort)
        judged, own = self._note_responses(own, cohort, responses)
        own = self._remember(own, state, cohort, judged)
        counts = np.array([own.refusals.get(report.client, 0) == 0 for report in cohort.reports])
        shares, own = self._share_crowds(own, cohort)
        if not counts.any():
            return state.weights, own
        usual = _low_median(cohort.norms[counts])
        limited = self._limit(cohort, counts, shares, usual)
        weights, inner = self.inner.aggregate(setup, self.unwrapped(state), limited)
        return weights, replace(own, inner=inner, norms=(*own.norms, usual)[-NORM_ROUNDS:])

    def _note_responses(
        self, own: CheckedState, cohort: _Cohort, responses: FloatArray
    ) -> tuple[FloatArray, CheckedState]:
        """Return each client's last responses, and the state with the clients whose update is refused."""
        rows = {client: row for row, client in enumerate(own.clients)}
        earlier = [
            own.responses[rows[report.client]] if report.client in rows else np.full(RESPONSES, np.nan)
            for report in cohort.reports
        ]
        known = (*own.typical_responses, *responses[~np.isnan(responses)].tolist())[-TYPICAL:]
        typical = float(np.median(known)) if len(known) >= MIN_TYPICAL else 0.0
        refusals, judged = dict(own.refusals), np.full((len(responses), RESPONSES), np.nan)
        for place, (report, response) in enumerate(zip(cohort.reports, responses.tolist(), strict=True)):
            judged[place] = earlier[place] if np.isnan(response) else [*earlier[place][1:], response]
            before = refusals.pop(report.client, 0)
            if self._is_refused(judged[place], typical):
                refusals[report.client] = before + 1
        return judged, replace(own, typical_responses=known, refusals=refusals)

    def _is_refused(self, responses: FloatArray, typical: float) -> bool:
        """Whether a client's updates do not respond to the model as they should."""
        if np.isnan(responses).all():
            return False
        mean = float(np.nanmean(responses))
        if typical <= 0:
            return mean <= 0
        return not self.least_response <= mean / typical <= self.most_response

    def _remember(self, own: CheckedState, state: ServerState, cohort: _Cohort, judged: FloatArray) -> CheckedState:
        """Return the state with the round's updates and the models that they are updates of."""
        fresh = [place for place, number in enumerate(cohort.received) if number is not None][-self.memory :]
        replaced = {cohort.reports[place].client for place in fresh}
        kept = [row for row, client in enumerate(own.clients) if client not in replaced]
        kept = kept[max(len(kept) + len(fresh) - self.memory, 0) :]
        received = [own.received[row] for row in kept] + [cohort.received[place] or 0 for place in fresh]
        known = {number: row for row, number in enumerate(own.model_rounds)}
        rounds = sorted(set(received))
        models = [own.models[known[number]] if number in known else state.weights for number in rounds]
        size = len(state.weights)
        return replace(
            own,
            clients=(*(own.clients[row] for row in kept), *(cohort.reports[place].client for place in fresh)),
            directions=_stack([own.directions[row] for row in kept] + [cohort.directions[p] for p in fresh], size),
            received=tuple(received),
            model_rounds=tuple(rounds),
            models=_stack(models, size),
            responses=np.concatenate([own.responses[kept], judged[fresh]]),
        )

    def _share_crowds(self, own: CheckedState, cohort: _Cohort) -> tuple[FloatArray, CheckedState]:
        """Return the share of its weight that each client keeps, and the state with their crowds."""
        crowds = crowd_sizes(cohort.directions, own.directions)
        known = (*own.typical_crowds, *crowds.tolist())[-TYPICAL:]
        excess = crowds / max(self.most_alike * float(np.median(known)), 1e-30)
        return np.maximum(excess, 1.0) ** -2.0, replace(own, typical_crowds=known)

    def _limit(
        self, cohort: _Cohort, counts: NDArray[np.bool_], shares: FloatArray, usual: float
    ) -> list[ClientReport]:
        """Return the reports that count, with clipped updates and limited weights."""
        heaviest = self.most_weight * float(np.median([report.weight for report in cohort.reports]))
        longest, limited = self.radius * usual, []
        for place in np.flatnonzero(counts).tolist():
            report, norm = cohort.reports[place], float(cohort.norms[place])
            update = report.update if norm <= longest else (report.update * (longest / norm)).astype(np.float32)
            limited.append(replace(report, update=update, weight=min(report.weight, heaviest) * float(shares[place])))
        return limited


def _cohort(own: CheckedState, state: ServerState, reports: list[ClientReport]) -> _Cohort:
    """Return the reports with their norms, their directions and the round of the model that each is an update of."""
    norms = np.array([_norm(report.update) for report in reports])
    directions = np.stack(
        [
            (report.update / np.float32(norm)).astype(np.float32) if norm > 0 else np.zeros_like(report.update)
            for report, norm in zip(reports, norms.tolist(), strict=True)
        ]
    )
    bases = [state.round - report.staleness for report in reports]
    received = [
        base if report.part is None and (report.staleness == 0 or base in own.model_rounds) else None
        for report, base in zip(reports, bases, strict=True)
    ]
    return _Cohort(reports, norms, directions, received)


def _responses(own: CheckedState, state: ServerState, cohort: _Cohort) -> FloatArray:
    """Return each client's response; NaN without an earlier update."""
    rows = {client: row for row, client in enumerate(own.clients)}
    models = {number: own.models[row] for row, number in enumerate(own.model_rounds)}
    responses = np.full(len(cohort.reports), np.nan)
    for place, (report, number) in enumerate(zip(cohort.reports, cohort.received, strict=True)):
        row = rows.get(report.client)
        if row is None or number is None or own.received[row] == number:
            continue
        model = models.get(number, state.weights)
        responses[place] = response(own.directions[row], cohort.directions[place], models[own.received[row]], model)
    return responses


def response(old: Weights, new: Weights, old_model: Weights, new_model: Weights) -> float:
    """Return how an update responds to the movement of the model: the cosine of its change and the movement, negated.

    Args:
        old: The earlier update, divided by its norm.
        new: The later update, divided by its norm.
        old_model: The model that the earlier update starts from.
        new_model: The model that the later update starts from.

    Returns:
        From -1 to 1; 0 if the model did not change, or the update only by rounding.

    Example:
        >>> x, y = np.float32([1, 0]), np.float32([0, 1])
        >>> response(x, y, 0 * x, x), response(x, x, 0 * x, x)  # it turns away from where the model went; it does not
        (0.7071067811865475, 0.0)
    """
    change, moved = new.astype(np.float64) - old, new_model.astype(np.float64) - old_model
    length = _norm(change) * _norm(moved)
    return 0.0 if length == 0 or _norm(change) < LEAST_CHANGE else float(-(change @ moved) / length)


def crowd_sizes(directions: Weights, remembered: Weights) -> FloatArray:
    """Return how many of the remembered clients push in the same direction as each client, itself included.

    Args:
        directions: Updates, divided by their norms, one per row.
        remembered: Those of all remembered clients.

    Returns:
        For each row, the sum of squared cosines after subtracting the mean of `remembered`.

    Example:
        >>> directions = np.float32([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
        >>> crowd_sizes(directions, directions).round(1).tolist()
        [2.9, 2.9, 1.9, 1.9]
    """
    if not len(remembered):
        return np.ones(len(directions))
    mean = remembered.mean(axis=0, dtype=np.float64).astype(np.float32)
    centred, others = directions - mean, remembered - mean
    lengths = np.outer(np.linalg.norm(centred, axis=1), np.linalg.norm(others, axis=1)).astype(np.float64)
    products = (centred @ others.T).astype(np.float64)
    cosines = np.divide(products, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return np.asarray((cosines**2).sum(axis=1))


def _stack(rows: list[Weights], size: int) -> Weights:
    return np.stack(rows) if rows else np.zeros((0, size), dtype=np.float32)


def _low_median(norms: Sequence[float] | FloatArray) -> float:
    """Return the median; of an even number the lower middle one, so that half of a round cannot raise it."""
    return float(np.sort(np.asarray(norms))[(len(norms) - 1) // 2])


def _norm(vector: Any) -> float:
    return float(np.linalg.norm(np.asarray(vector, dtype=np.float64)))
