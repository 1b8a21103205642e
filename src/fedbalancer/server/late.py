"""Late policies: how reports that arrive after their round has closed are used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedbalancer.core.contracts import NOTHING, LatePolicy, Private
from fedbalancer.core.types import ClientReport, LateRule, RoundResult, ServerState, Setup
from fedbalancer.server.aggregate.mean import mean_update

__all__ = ["Boosted", "Buffered", "Joins", "Lost", "staleness_weight"]


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
    """Clients whose reports are still to arrive.

    Args:
        clients: Client ids in order.
    """

    clients: tuple[str, ...] = ()


PAPER_BUFFER = 10
"""The paper's buffer size for all its tasks, with a hundred clients or more working concurrently."""


@dataclass(frozen=True)
class Buffered(LatePolicy):
    """FedBuff: K clients work concurrently, and the server steps after every `buffer` reports.

    After each step as many clients start, from the current model (Nguyen et al., "Federated Learning with Buffered
    Asynchronous Aggregation", AISTATS 2022).

    A step is the unweighted mean over the buffer of s D (the paper's Algorithm 1). D is an update relative to the model
    from which its client started; s = 1 / sqrt(1 + tau), where tau is the number of steps since then. The paper's eta_g
    is 1, or the step of the aggregator (`+momentum`).

    Difference from the paper: a round is one step, so a free place is filled with the next step, not immediately.

    Args:
        buffer: Reports per step. None: the paper's 10, but at most half of K.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedbuff").late
        Buffered(buffer=None)
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    buffer: int | None = None

    def init(self, setup: Setup) -> PendingClients:
        return PendingClients()

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> PendingClients:
        return PendingClients(result.under_way)

    def refuses(self, method: Any) -> str | None:
        is_valid = self.buffer is None or self.buffer >= 1
        return None if is_valid else f"Buffered(buffer={self.buffer}): buffer must be at least 1"

    def rule(self) -> LateRule:
        return "counts"

    def room(self, setup: Setup, state: ServerState) -> int:
        return setup.clients_per_round - len(state.late.clients)

    def quorum(self, setup: Setup, state: ServerState, quorum: int) -> int:
        buffer = min(PAPER_BUFFER, (setup.clients_per_round + 1) // 2) if self.buffer is None else self.buffer
        return min(buffer, quorum + len(state.late.clients))  # at most as many as can arrive

    def weighted(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> Sequence[ClientReport]:
        return [
            replace(each, weight=1.0, update=each.update * np.float32(staleness_weight(each.staleness)))
            for each in reports
        ]


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
