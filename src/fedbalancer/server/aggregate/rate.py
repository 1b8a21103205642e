"""The clients' learning rate, found while training: every cohort is an experiment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.fields import AtLeastOne, Count, NonzeroShare
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import STEP_BINS, ClientReport, FloatArray, ServerState, Setup, Weights
from fedbalancer.core.wrapping import Wrapping
from fedbalancer.server.aggregate.mean import WeightedMean, sort_by_client, squared_norm

MIN_REPORTS = 3
"""Fewest reports from which the rate is changed."""
LONGEST = 2.0
"""Longest update that counts in full, as a multiple of the round's median norm."""
MOST_MOVE = 1.0
"""Largest change of the logarithm of the rate in one round."""
MOST_FACTOR = 1e4
"""Largest and smallest (as 1 / factor) multiple of the task's rate."""
ALIKE = 0.2
"""Median cosine of two clients' updates from which on only the agreement with the last step raises the rate."""
STRAIGHT = 0.55
"""Cosine of the mean gradient and the last step above which the rate rises."""
UP, DOWN, TREND = 1.6, 0.3, 0.8
"""Change of the rate's logarithm per unit of cosine above `STRAIGHT`, of cosine below 0, and of rank correlation."""
VOTES = 1.0
"""Change of the rate's logarithm if all updates point where the model last went, and not back, in late rounds."""
SKETCH = 1024
"""Numbers that are kept of each client's last update, from which its cosine with the next one is estimated."""
REPEATED = 0.05
"""Fall of the rate's logarithm if all clients were in the last round: with `rounds` = 10, as 1 / sqrt(n)."""
SURE = 10
"""Number of reports from which their rank correlation counts in full; that of n unrelated ones varies as
1 / sqrt(n - 1)."""
DEAD = 0.4
"""Rank correlation that changes nothing where updates are alike."""
FEW = 5
"""Number of losses from which their mean is used alone."""
BACK = 4.0
"""Divisor of the factor after a round in which training diverged."""
RISE, LOST = 0.2, 0.5
"""A client's training diverged if its loss rose by both shares: of the first loss, and of what the model learned."""
ERRORS = 2.0
"""Standard errors by which its loss must also have risen."""
RISEN, EXPLODED = 1.3, 5.0
"""After the factor rose by `RISEN`, training also diverged if updates are `EXPLODED` times as long as this explains."""


@dataclass(frozen=True, eq=False)
class RateState:
    """State of `AutoRate`.

    Args:
        inner: State of the wrapped policy.
        log_factor: Natural logarithm of the factor of the task's learning rate.
        rounds: Number of rounds with reports.
        step: The last change of the model; empty before the first and after a round that is not applied.
        untrained: Median first loss of the first round; NaN before it or if no losses by steps are released.
        members: Ids of the clients whose updates are in `step`.
        sketches: Sketches of their updates (`sketch`), one row per client.
        longest: Median norm of the next updates above which training diverged.
    """

    inner: Any
    log_factor: float
    rounds: int = 0
    step: Weights = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    untrained: float = math.nan
    members: tuple[str, ...] = ()
    sketches: FloatArray = field(default_factory=lambda: np.zeros((0, SKETCH)))
    longest: float = math.inf


@dataclass(frozen=True)
class AutoRate(Wrapping, Aggregator):
    """Ours, used by `+autorate`: finds the clients' learning rate while training.

    The rate of a client in a round is the task's rate times a common factor, times a number between 1 / `spread` and
    `spread` that is drawn for this client and round. After the round, the common factor moves by what these rates
    achieved:

    - *Agreement with the last step.* If most updates still point where the model last went, the steps are too short,
      and the factor rises. The median cosine is divided by what it would be for the same gradient, given how much the
      updates of two clients agree, so that differences between clients do not count as a turn. A client also agrees
      with its own part of the last step. How much is measured from sketches of its last two updates and belongs to the
      divisor: where the same few phones are online for hours, most agreement is of this kind. In the late vote such a
      client does not count. As far as only they report, the rate falls slowly, so that the model does not follow them
      alone.
    - *The experiment.* The rank correlation of the clients' rates and the relative fall of their losses during local
      training. If clients with larger rates fall more, the factor rises. Its weight is small where updates are alike,
      and with fewer than ten reports.

    Both are medians or ranks, and this changes the factor by at most e per round, so one dishonest client cannot set
    it. Updates are clipped to twice the median norm.

    If local training diverged, the round is not applied: the model and the wrapped policy stay as they are, and the
    factor is divided by 4. It diverged if it made the losses of half of the clients clearly worse (`diverged`), or if
    updates are five times as long as the last rise of the factor explains. The first needs the losses of
    `LossesBySteps`; with another summary, such as a private or silent one, it is off.

    After `rounds` rounds, moves and `spread` - 1 decrease as 1 / n.

    Args:
        inner: The wrapped aggregator.
        spread: Largest factor between a client's rate and the common rate. 1: no experiment.
        rounds: Rounds with moves of full size.
        first: Factor of the first round. It is below 1 because the factor rises more safely than it falls.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("canter+autorate").aggregate.inner
        ExtrapolatedMomentum(beta=0.5)
    """

    inner: Aggregator = field(default_factory=WeightedMean)
    spread: AtLeastOne = 3.0
    rounds: Count = 10
    first: NonzeroShare = 1 / 3

    def refuses(self, method: Any) -> str | None:
        """Refuse methods without rounds, updates without lengths, parts of the model, and noise with a guarantee."""
        if why := self.inner.refuses(method):
            return why
        if method.late.rule() == "counts":
            return f"AutoRate compares the clients of a round; late {type(method.late).__name__} has none"
        if self.inner.counts_votes:
            return f"AutoRate compares the lengths of updates; {type(self.inner).__name__} sends signs only"
        if not method.part.is_whole:
            return f"AutoRate compares updates of the whole model; part {type(method.part).__name__} sends parts"
        if self.inner.model_noise_multiplier is not None:
            return f"AutoRate reveals more of the updates than the model that {type(self.inner).__name__} protects"
        return None

    def init(self, setup: Setup) -> RateState:
        return RateState(self.inner.init(setup), math.log(self.first))

    def client_rates(self, setup: Setup, state: ServerState, clients: Sequence[str]) -> Mapping[str, float]:
        """Return the factor of the learning rate of every client, drawn from its named stream, times the inner one."""
        common, inner = (
            math.exp(state.aggregate.log_factor),
            self.inner.client_rates(setup, self.unwrapped(state), clients),
        )
        drawn = self._draws(setup, state, clients)
        return {**inner, **{client: common * draw * inner.get(client, 1.0) for client, draw in drawn.items()}}

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, RateState]:
        own: RateState = state.aggregate
        ordered = sort_by_client(reports)
        most = math.log(MOST_FACTOR)
        losses = np.array([first_and_last(report) for report in ordered if report.staleness == 0]).reshape(-1, 3)
        untrained = _median(losses) if math.isnan(own.untrained) else own.untrained
        norms = np.array([math.sqrt(squared_norm(report.update)) for report in ordered])
        norm = float(np.median(norms)) if len(norms) else 0.0
        if diverged(losses, untrained) or norm > own.longest:
            lower = max(own.log_factor - math.log(BACK), -most)
            return state.weights, RateState(own.inner, lower, own.rounds + 1, untrained=untrained)
        rate = setup.rate_in(state.round + 1) * math.exp(own.log_factor)
        weights, inner = self.inner.aggregate(
            replace(setup, learning_rate=rate, schedule=None), self.unwrapped(state), _clip(ordered, norms)
        )
        directions = _directions(ordered, norms)
        sketches = sketch(directions)
        move = self._move(setup, state, ordered, directions, sketches)
        log_factor = min(max(own.log_factor + move, -most), most)
        longest = EXPLODED * math.exp(move) * norm if move > math.log(RISEN) else math.inf
        return weights, RateState(
            inner, log_factor, own.rounds + 1, weights - state.weights, untrained,
            tuple(report.client for report in ordered), sketches, longest,
        )  # fmt: skip

    def _gain(self, own: RateState) -> float:
        return min(1.0, self.rounds / (own.rounds + 1))

    def _draws(self, setup: Setup, state: ServerState, clients: Sequence[str]) -> dict[str, float]:
        """Return each client's rate as a multiple of the common rate, the same on every call in a round."""
        widest = 1 + (self.spread - 1) * self._gain(state.aggregate)
        return {
            client: widest ** (2 * stream(setup.seed, "learning rate", state.round + 1, client).random() - 1)
            for client in clients
        }

    def _move(
        self,
        setup: Setup,
        state: ServerState,
        reports: Sequence[ClientReport],
        directions: Weights,
        sketches: FloatArray,
    ) -> float:
        """Return the change of the logarithm of the rate."""
        own: RateState = state.aggregate
        fresh = [place for place, report in enumerate(reports) if report.staleness == 0]
        if len(fresh) < MIN_REPORTS or not len(own.step):
            return 0.0
        current, directions = [reports[place] for place in fresh], directions[fresh]
        last = dict(zip(own.members, own.sketches, strict=True))
        again = np.array(
            [
                float(sketches[place] @ last[client]) if (client := reports[place].client) in last else math.nan
                for place in fresh
            ]
        )
        repeated = ~np.isnan(again)
        alike, straight = agreement(directions, own.step, again)
        trend = 0.0
        if self.spread > 1:
            draws = self._draws(setup, state, [report.client for report in current])
            trend = rate_trend(list(draws.values()), [loss_fall(report) for report in current])
            trend *= min(1.0, math.sqrt((len(current) - 1) / (SURE - 1)))
        gain, share = self._gain(own), min(max(alike, 0.0) / ALIKE, 1.0)
        by_step = UP * (straight - STRAIGHT) if straight > STRAIGHT else DOWN * min(straight, 0.0)
        by_step -= TREND * math.copysign(max(abs(trend) - DEAD, 0.0), trend)
        votes = np.where(repeated, 0.0, np.sign(directions @ own.step))
        by_cohort = VOTES * (1 - gain) * float(votes.mean()) - TREND * gain * trend
        move = share * by_step + (1 - share) * by_cohort - REPEATED * float(repeated.mean())
        return gain * min(max(move, -MOST_MOVE), MOST_MOVE)


def agreement(directions: Weights, step: Weights, again: FloatArray) -> tuple[float, float]:
    """Return how much clients agree with each other, and how much their mean gradient agrees with the last step.

    If updates are a common gradient plus a part of the client's own, two of them have the cosine p, and one has the
    cosine p / m with the mean of K, where m = sqrt(p + (1 - p) / K). If its own part stays partly the same, so that its
    update has the cosine q > p with its last one, which is in the step, the cosine with the step is larger:
    (p + (q - p) / K) / m. The second result is the cosine with the step divided by this, with the part of clients that
    are in the step.

    Args:
        directions: Updates of norm 1, one row per client.
        step: The last change of the model.
        again: The cosine of each client's update with its last one; NaN if the step does not contain it.

    Returns:
        The median cosine of two clients, and the cosine from -1 to 1 of the mean gradient and the step; 0 if neither
        clients agree with each other nor each with its own last update.

    Example:
        >>> agreement(np.eye(3), np.ones(3), np.full(3, np.nan))  # each has its own direction
        (0.0, 0.0)
        >>> agreement(np.eye(3), np.ones(3), np.ones(3))  # each has its own direction, and keeps it
        (0.0, 1.0)
    """
    count = len(directions)
    alike = float(np.median((directions @ directions.T)[np.triu_indices(count, 1)]))
    common, length = max(alike, 0.0), math.sqrt(squared_norm(step))
    known = again[~np.isnan(again)]
    kept = len(known) / count * max(float(np.median(known)) - common, 0.0) / count if len(known) else 0.0
    if common + kept <= 0.02 or length == 0:
        return alike, 0.0
    mean_length = math.sqrt(common + (1 - common) / count)
    cosine = float(np.median(directions @ step)) / length
    return alike, min(max(cosine * mean_length / (common + kept), -1.0), 1.0)


def sketch(directions: Weights) -> FloatArray:
    """Return `SKETCH` numbers per row, whose inner products estimate those of the rows with an error of some 0.03.

    Every number is the sum of a part of the row with random signs, which are always the same.

    Args:
        directions: Vectors of norm 1, one per row.

    Example:
        >>> sketch(np.eye(2, 5)).shape
        (2, 1024)
    """
    rows, size = directions.shape
    signs = np.random.default_rng(0).integers(0, 2, size, dtype=np.int8) * np.int8(2) - np.int8(1)
    full = size // SKETCH * SKETCH
    sums = np.zeros((rows, SKETCH))
    for place, direction in enumerate(directions):
        signed = direction * signs
        sums[place] = signed[:full].reshape(-1, SKETCH).sum(axis=0)
        sums[place, : size - full] += signed[full:]
    return sums


def first_and_last(report: ClientReport) -> tuple[float, float, float]:
    """Return a client's mean loss before and after local training, and the standard error of their difference.

    Every loss is of a sample that was not yet trained in this round (`LossesBySteps`). All are NaN if the summary does
    not release them.

    Args:
        report: The report.
    """
    unknown = (math.nan, math.nan, math.nan)
    if len(report.summary.released) != 3 * STEP_BINS:
        return unknown
    by_bin = np.reshape(report.summary.released, (3, STEP_BINS))
    bins = np.flatnonzero(by_bin[0] >= 1)
    if len(bins) < 2:
        return unknown
    last = bins[-1:] if by_bin[0, bins[-1]] >= FEW else bins[-2:]
    counts, sums, squares = np.stack([by_bin[:, bins[0]], by_bin[:, last].sum(axis=1)], axis=1)
    means = sums / counts
    variances = np.maximum(squares / counts - means**2, 0.0)
    return float(means[0]), float(means[1]), math.sqrt(float((variances / counts).sum()))


def loss_fall(report: ClientReport) -> float:
    """Return the logarithm of a client's last losses over its first ones, or NaN if they are not released.

    Args:
        report: The report.
    """
    first, last, _ = first_and_last(report)
    return math.log(max(last, 1e-6) / max(first, 1e-6))


def diverged(losses: FloatArray, untrained: float) -> bool:
    """Return whether local training made the losses of at least half of the clients clearly worse.

    A client counts if its loss rose by more than `RISE` of its first loss, by more than `LOST` of the way back to the
    loss of the untrained model, and by more than `ERRORS` standard errors. Late losses of a few samples vary by a
    multiple, but do not return to that loss.

    Args:
        losses: First and last loss of every client and the error of their difference (`first_and_last`), one row per
            client.
        untrained: Median first loss of the first round; NaN if unknown.

    Example:
        >>> diverged(np.array([[1.0, 1.9, 0.1], [1.2, 2.5, 0.1], [0.9, 0.8, 0.1]]), untrained=2.0)
        True
        >>> diverged(np.array([[0.1, 0.5, 0.1], [0.2, 0.4, 0.1], [0.1, 0.8, 0.1]]), untrained=2.0)
        False
    """
    known = losses[~np.isnan(losses).any(axis=1)]
    if len(known) < MIN_REPORTS or math.isnan(untrained):
        return False
    first, last, error = known.T
    rose = last - first > np.maximum(np.maximum(RISE * first, LOST * (untrained - first)), ERRORS * error)
    return 2 * int(rose.sum()) >= len(known)


def rate_trend(rates: Sequence[float], falls: Sequence[float]) -> float:
    """Return the rank correlation of rates and loss changes. Below 0, larger rates have lower losses.

    Args:
        rates: The rate of every client.
        falls: The logarithm of last over first loss (`loss_fall`); NaN if unknown.

    Returns:
        Spearman's correlation; 0 with fewer than three known falls.

    Example:
        >>> rate_trend([0.5, 1.0, 2.0], [-0.1, -0.2, -0.4])
        -1.0
    """
    known = [(rate, fall) for rate, fall in zip(rates, falls, strict=True) if not math.isnan(fall)]
    count = len(known)
    if count < MIN_REPORTS or len({fall for _, fall in known}) == 1:
        return 0.0
    first, second = (np.argsort(np.argsort([pair[side] for pair in known], kind="stable")) for side in (0, 1))
    return 1 - 6 * float(((first - second) ** 2).sum()) / (count * (count**2 - 1))


def _median(losses: FloatArray) -> float:
    """Return the median first loss, or NaN if no client releases it."""
    known = losses[~np.isnan(losses).any(axis=1), 0]
    return float(np.median(known)) if len(known) else math.nan


def _clip(reports: Sequence[ClientReport], norms: FloatArray) -> list[ClientReport]:
    """Return the reports with updates of at most `LONGEST` times the median norm."""
    longest = LONGEST * float(np.median(norms)) if len(norms) else 0.0
    return [
        report if norm <= longest else replace(report, update=report.update * np.float32(longest / norm))
        for report, norm in zip(reports, norms.tolist(), strict=True)
    ]


def _directions(reports: Sequence[ClientReport], norms: FloatArray) -> Weights:
    """Return the updates divided by their norms, one row per client."""
    size = len(reports[0].update) if reports else 0
    rows = np.empty((len(reports), size), dtype=np.float32)
    for row, report, norm in zip(rows, reports, norms.tolist(), strict=True):
        np.divide(report.update, max(norm, 1e-30), out=row)
    return rows
