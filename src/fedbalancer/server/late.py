"""Late policies: how reports that arrive after their round has closed are used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.contracts import NOTHING, LatePolicy, Private
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.fields import Bounds, Count, NonzeroShare, UpTo100
from fedbalancer.core.types import (
    ClientReport,
    IndexArray,
    LateRule,
    RoundResult,
    ServerState,
    Setup,
    Summary,
    Timings,
    Weights,
)
from fedbalancer.server.aggregate.mean import mean_update
from fedbalancer.server.arrival_groups import Counted, Schedule, Scheduler, StepRange, advance, first_schedule

__all__ = ["ArrivalGroups", "Boosted", "Buffered", "Joins", "Lost", "Mixed", "Timed", "staleness_weight"]


@dataclass(frozen=True)
class Lost(LatePolicy):
    """Discards late reports, as FedAvg and every synchronous method do. The client is available for the next round.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t").late
        Lost()
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    def rule(self) -> LateRule:
        return "lost"


def staleness_weight(staleness: int, power: float = 0.5) -> float:
    """Return (1 + tau)^-power, the weight of a report that arrives tau rounds late (FedBuff uses power 1/2).

    Args:
        staleness: Number of rounds tau.
        power: Strength of the discount.

    Returns:
        A factor from 0 to 1.

    Example:
        >>> staleness_weight(0), staleness_weight(3)
        (1.0, 0.5)
    """
    return float((1 + staleness) ** -power)


@dataclass(frozen=True)
class Joins(LatePolicy):
    """A late report counts in the round in which it arrives, with a lower weight.

    The client continues its work and is not selected again meanwhile. Its weight is its number of samples times
    (1 + tau)^-`power`, where tau is the number of rounds since it was selected. Late reports do not count towards the
    quorum, and the client, threshold, pace and deadline policies do not see them.

    Args:
        power: Strength of the discount by age.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t+late").late
        Joins(power=0.5)
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    power: float = 0.5

    def refuses(self, method: Any) -> str | None:
        is_valid = 0 <= self.power < math.inf
        return None if is_valid else f"Joins(power={self.power}): power must be finite and at least 0"

    def rule(self) -> LateRule:
        return "joins"

    def weighted(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> Sequence[ClientReport]:
        return [replace(each, weight=each.weight * staleness_weight(each.staleness, self.power)) for each in reports]


@dataclass(frozen=True)
class PendingClients:
    """Clients at work.

    Args:
        clients: Client ids in order.
    """

    clients: tuple[str, ...] = ()


PAPER_BUFFER = 10
"""FedBuff's buffer size for all tasks of its paper, with a hundred clients or more at work."""


class _Asynchronous(LatePolicy):
    """Base of the policies of asynchronous servers: K clients are at work at any time, and every report counts.

    A round is one step of the server. A place that becomes free before the step is filled at once with a client that
    receives the current model (`RoundPlan.reserve`).
    """

    def init(self, setup: Setup) -> Any:
        return PendingClients()

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> Any:
        return PendingClients(result.under_way)

    def rule(self) -> LateRule:
        return "counts"

    def room(self, setup: Setup, state: ServerState) -> int:
        return setup.clients_per_round - len(state.late.clients)


@dataclass(frozen=True)
class Buffered(_Asynchronous):
    """FedBuff: K clients work concurrently, and the server steps after every `buffer` reports.

    A client that reports is replaced at once (Nguyen et al., "Federated Learning with Buffered Asynchronous
    Aggregation", AISTATS 2022).

    A step is the unweighted mean over the buffer of s D (the paper's Algorithm 1). D is an update relative to the model
    from which its client started; s = (1 + tau)^-`power`, where tau is the number of steps since then. The paper's
    eta_g is 1, or the step of the aggregator (`+momentum`).

    Difference from the paper: a client works at most once per step, so that no report is a copy of another.

    Args:
        buffer: Reports per step. None: the paper's 10, but at most half of K.
        power: Strength of the discount by staleness. 0: none.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedbuff").late
        Buffered(buffer=None, power=0.5)
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    buffer: Count | None = None
    power: UpTo100 = 0.5

    def quorum(self, setup: Setup, state: ServerState, quorum: int) -> int:
        return min(PAPER_BUFFER, (setup.clients_per_round + 1) // 2) if self.buffer is None else self.buffer

    def weighted(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> Sequence[ClientReport]:
        return [
            replace(each, weight=1.0, update=each.update * np.float32(staleness_weight(each.staleness, self.power)))
            for each in reports
        ]


@dataclass(frozen=True)
class Timed(_Asynchronous):
    """Pisces's aggregation: the deadline policy decides when the server steps, with whatever has arrived.

    A report's weight is its number of trained samples times (1 + tau)^-`power`, where tau is the number of steps since
    its client started. A step without reports is put off until the first one arrives.

    Args:
        power: Strength of the discount by staleness.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("pisces").late
        Timed(power=0.5)
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    power: UpTo100 = 0.5

    def quorum(self, setup: Setup, state: ServerState, quorum: int) -> int:
        return len(state.ledger.clients)

    def weighted(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> Sequence[ClientReport]:
        return [replace(each, weight=each.weight * staleness_weight(each.staleness, self.power)) for each in reports]


@dataclass(frozen=True, eq=False)
class StartModels:
    """Clients at work, and the models from which they started.

    Args:
        clients: Client ids in order.
        rounds: Round in which each of them started.
        kept: Rounds whose models are kept, in ascending order.
        models: Their models, one per row.
    """

    clients: tuple[str, ...]
    rounds: IndexArray
    kept: IndexArray
    models: NDArray[np.float32]

    def started_in(self, round_number: int, latest: Weights) -> Weights:
        """Return the model that the clients of a round received; `latest` if the round has not ended yet."""
        places = np.flatnonzero(self.kept == round_number)
        return np.asarray(self.models[places[0]]) if len(places) else latest


Decay = Literal["constant", "polynomial", "hinge"]
"""FedAsync's functions of staleness."""


@dataclass(frozen=True)
class Mixed(_Asynchronous):
    """FedAsync: after every report, x = (1 - m) x + m y, where y is the client's model and m = `alpha` s(tau).

    tau is the number of steps since the client started, and s one of the paper's functions: 1 (constant),
    (1 + tau)^-`a` (polynomial), or 1 up to tau = `b` and 1 / (`a` (tau - `b`) + 1) from there on (hinge). Xie, Koyejo
    and Gupta, "Asynchronous Federated Optimization", OPT 2020, Algorithm 1.

    This is FedBuff's engine with a buffer of one report. A client reports an update D relative to the model x' from
    which it started, so y = x' + D: the server keeps the models from which the clients at work started.

    Differences from the paper: K clients are at work at any time; the paper draws staleness uniformly up to a bound.
    `alpha` is not halved during training.

    Args:
        alpha: Weight of a model without staleness.
        decay: Function of staleness: "constant", "polynomial" or "hinge".
        a: Exponent (polynomial) or slope (hinge).
        b: Staleness up to which the hinge function is 1.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedasync").late
        Mixed(alpha=0.6, decay='polynomial', a=0.5, b=4.0)
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    alpha: NonzeroShare = 0.6
    decay: Decay = "polynomial"
    a: UpTo100 = 0.5
    b: UpTo100 = 4.0

    def init(self, setup: Setup) -> StartModels:
        nobody = np.zeros(0, dtype=np.int64)
        return StartModels((), nobody, nobody, np.zeros((0, 0), dtype=np.float32))

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> StartModels:
        own: StartModels = state.late
        now, before = state.round + 1, dict(zip(own.clients, own.rounds.tolist(), strict=True))
        rounds = np.array([before.get(client, now) for client in result.under_way], dtype=np.int64)
        kept = np.unique(rounds)
        models = [own.started_in(number, state.weights) for number in kept.tolist()]
        stacked = np.stack(models) if models else np.zeros((0, len(state.weights)), dtype=np.float32)
        return StartModels(result.under_way, rounds, kept, stacked)

    def quorum(self, setup: Setup, state: ServerState, quorum: int) -> int:
        return 1

    def factor(self, staleness: int) -> float:
        """Return s(tau), from 0 to 1.

        Args:
            staleness: Number of steps tau.

        Example:
            >>> Mixed().factor(3), Mixed(decay="hinge", a=10.0).factor(5), Mixed(decay="constant").factor(9)
            (0.5, 0.09090909090909091, 1.0)
        """
        if self.decay == "constant" or (self.decay == "hinge" and staleness <= self.b):
            return 1.0
        if self.decay == "hinge":
            return float(1 / (self.a * (staleness - self.b) + 1))
        return staleness_weight(staleness, self.a)

    def weighted(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> Sequence[ClientReport]:
        mixed = []
        for each in reports:
            start = state.late.started_in(state.round + 1 - each.staleness, state.weights)
            step = np.float32(self.alpha * self.factor(each.staleness)) * (start + each.update - state.weights)
            mixed.append(replace(each, weight=1.0, update=step))
        return mixed


LateFactor = Annotated[float, Bounds(ge=1, le=100)]
NO_STATISTICS = Summary(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0.0)


@dataclass(frozen=True)
class ArrivalGroups(LatePolicy):
    """FedCompass: clients get as many local steps as let them arrive in groups.

    A client that starts joins the arrival group in which it has the most local steps from `least` to `most`, by its
    estimated seconds per step. If none fits, it opens a group, timed so that the fastest client of an existing group
    can join it later. When all clients of a group have arrived, or at its latest time, `late_factor` times as long
    after its start as expected, its updates are aggregated and its clients start again. A client that arrives after
    that time starts again at once; its update waits in a general buffer for the next group (Li et al., "FedCompass:
    Efficient Cross-Silo Federated Learning on Heterogeneous Client Devices Using a Computing Power-Aware Scheduler",
    ICLR 2024).

    A step is x += sum of alpha s(tau) D / K over the updates D of the group and of the buffer, with
    s(tau) = (1 + tau)^-`power`, where tau is the number of aggregations since the client started. A round is one event:
    an arrival, or the latest time of a group.

    Differences from the paper: speeds before the first report come from the server's ledger; K clients are at work at
    any time, not all; client weights are equal.

    Args:
        least: Fewest local steps.
        most: Most local steps.
        alpha: Weight of an update without staleness.
        power: Strength of the discount by staleness.
        momentum: Weight of a new measurement in the estimate of a client's speed.
        late_factor: The latest time of a group, as a multiple of the expected seconds from its start.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedcompass").late
        ArrivalGroups(least=20, most=100, alpha=0.9, power=0.5, momentum=0.9, late_factor=1.5)
    """

    # Two updates of a client may count in one step, which the bound of an epsilon does not cover.
    reacts_to: ClassVar[frozenset[Private]] = frozenset({"updates"})
    refills: ClassVar[bool] = False

    least: Count = 20
    most: Count = 100
    alpha: NonzeroShare = 0.9
    power: UpTo100 = 0.5
    momentum: NonzeroShare = 0.9
    late_factor: LateFactor = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least > self.most:
            raise BadSetting(f"late ArrivalGroups: least must be at most most={self.most}, got {self.least}")

    @property
    def most_steps(self) -> int:
        """The most local steps."""
        return self.most

    @property
    def _steps(self) -> StepRange:
        return StepRange(self.least, self.most, self.momentum, self.late_factor)

    def init(self, setup: Setup) -> Schedule:
        return first_schedule(setup.ledger, self.most)

    def rule(self) -> LateRule:
        return "counts"

    def refuses(self, method: Any) -> str | None:
        """Refuse policies that need what an update in a buffer no longer has, or that change the number of steps."""
        work = type(method.work).__name__
        if work != "AllOrNothing":
            return f"late ArrivalGroups sets the local steps, so work must be AllOrNothing, not {work}"
        if not (method.train.is_plain and method.part.is_whole):
            return "late ArrivalGroups works with plain training of the whole model only"
        if method.aggregate.needs_losses or method.aggregate.needs_counts:
            return (
                f"late ArrivalGroups keeps updates only, and {type(method.aggregate).__name__} needs more of a report"
            )
        return None

    def room(self, setup: Setup, state: ServerState) -> int:
        own: Schedule = state.late
        return setup.clients_per_round - len(own.members) - len(own.waiting)

    def quorum(self, setup: Setup, state: ServerState, quorum: int) -> int:
        return 1

    def eligible(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        """Return the clients that do not wait for their group."""
        return available[~np.isin(available, state.ledger.rows(state.late.waiting))]

    def timer_s(self, setup: Setup, state: ServerState) -> float:
        """Return the seconds until the next latest time of a group with reports."""
        return max(float(state.late.timer_s()) - state.clock_s, 0.0)

    def local_steps(self, setup: Setup, state: ServerState, cohort: IndexArray) -> Sequence[int]:
        """Return the local steps that let each client arrive with its group."""
        scheduler = Scheduler(state.late, self._steps, state.ledger)
        return scheduler.start([state.ledger.clients[row] for row in cohort.tolist()], state.clock_s)

    def combined(self, setup: Setup, state: ServerState, result: RoundResult) -> Sequence[ClientReport]:
        """Return the updates of the groups that close, weighted so that their mean is the step."""
        counted = self._advance(state, result)[1]
        scale = len(counted) * self.alpha / setup.clients_per_round
        return [
            ClientReport(
                each.client, each.update * np.float32(scale * staleness_weight(each.staleness, self.power)), 1.0, 1.0,
                NO_STATISTICS, Timings(), each.staleness,
            )
            for each in counted
        ]  # fmt: skip

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> Schedule:
        return self._advance(state, result)[0]

    def _advance(self, state: ServerState, result: RoundResult) -> tuple[Schedule, list[Counted]]:
        now_s = state.clock_s + result.window_s + result.seconds
        started, arrived = (result.plan.cohort, state.clock_s), (result.reports, result.under_way, now_s)
        return advance(state.late, self._steps, state.ledger, started, arrived)


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
    differences = (mean - report.update for report in stale)
    return [float(np.dot(each, each)) / ((len(fresh) + 1) ** 2 * length) for each in differences]


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
        distances = deviations([report for report in reports if not report.staleness], stale)
        longest = max(distances) or 1.0
        boost = {
            each.client: 1 - math.exp(-distance / longest) for each, distance in zip(stale, distances, strict=True)
        }
        scale = {each.client: self.scale(each.staleness, boost[each.client]) for each in stale}
        return [replace(each, weight=each.weight * scale.get(each.client, 1.0)) for each in reports]

    def refuses(self, method: Any) -> str | None:
        return None if 0 <= self.beta < 1 else f"Boosted(beta={self.beta}): beta must be at least 0 and below 1"

    def scale(self, staleness: int, boost: float) -> float:
        """Return the weight of a stale report relative to a fresh one.

        Example:
            >>> Boosted().scale(1, 0.0), Boosted(beta=0.0).scale(3, 1.0)
            (0.325, 0.25)
        """
        return (1 - self.beta) / (1 + staleness) + self.beta * boost
