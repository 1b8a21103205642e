"""Aggregators of asynchronous servers: CA2FL's calibration by cached updates, and FADAS's delay-adaptive AMSGrad.

Both step once per buffer of reports, with the late policy `Buffered(power=0)`: an update counts in full, however stale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.fields import BelowOne, Bounds, Step
from fedbalancer.core.types import ClientReport, FloatArray, ServerState, Setup, Weights
from fedbalancer.server.aggregate.mean import mean_update, sort_by_client


@dataclass(frozen=True, eq=False)
class CachedUpdates:
    """The last update of every client that has reported.

    Args:
        clients: Client ids in order.
        updates: Their updates, one per row.
        total: Sum of the updates, one value per parameter.
    """

    clients: tuple[str, ...]
    updates: NDArray[np.float32]
    total: FloatArray

    @classmethod
    def empty(cls) -> CachedUpdates:
        """Return the cache before the first round."""
        return cls((), np.zeros((0, 0), dtype=np.float32), np.zeros(0))

    def of(self, client: str, size: int) -> Weights:
        """Return the cached update of a client; zeros before its first report."""
        if client not in self.clients:
            return np.zeros(size, dtype=np.float32)
        return np.asarray(self.updates[self.clients.index(client)])

    def replace_updates(self, fresh: Sequence[ClientReport]) -> CachedUpdates:
        """Return the cache with the updates of these reports, which are sorted by client id."""
        news = {report.client: report.update for report in fresh}
        clients = tuple(sorted({*self.clients, *news}))
        size = len(fresh[0].update)
        updates = np.stack([news[client] if client in news else self.of(client, size) for client in clients])
        return CachedUpdates(clients, updates.astype(np.float32), updates.sum(axis=0, dtype=np.float64))


@dataclass(frozen=True)
class CalibratedMean(Aggregator):
    """CA2FL: the server calibrates the buffer's mean with the last update of every client.

    v = h + mean(D_i - h_i) over the buffer, x += `eta` v, then h_i = D_i for the clients of the buffer. h_i is client
    i's last update, 0 before its first report, and h the mean of all h_i (Wang et al., "Tackling the Data Heterogeneity
    in Asynchronous Federated Learning with Cached Update Calibration", ICLR 2024, Algorithm 2). Fast clients report
    more often; the cached updates give the slow ones their part in every step.

    The server keeps one update per client.

    Args:
        eta: Server learning rate.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("ca2fl").aggregate
        CalibratedMean(eta=1.0)
    """

    eta: Step = 1.0

    def init(self, setup: Setup) -> CachedUpdates:
        return CachedUpdates.empty()

    def aggregate(
        self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]
    ) -> tuple[Weights, CachedUpdates]:
        cache: CachedUpdates = state.aggregate
        ordered, size = sort_by_client(reports), len(state.weights)
        changes = [replace(each, update=each.update - cache.of(each.client, size)) for each in ordered]
        step = mean_update(changes)
        if len(cache.total):
            step = step + cache.total / len(state.ledger.clients)
        weights = (state.weights + self.eta * step).astype(np.float32)
        return weights, cache.replace_updates(ordered)


@dataclass(frozen=True, eq=False)
class AMSGradMoments:
    """State of `DelayAdaptive`.

    Args:
        first: First moment per parameter; empty before the first round.
        second: Second moment per parameter.
        largest: Maximum of all second moments, per parameter.
    """

    first: FloatArray
    second: FloatArray
    largest: FloatArray


@dataclass(frozen=True)
class DelayAdaptive(Aggregator):
    """FADAS: AMSGrad on the server, with a smaller step if the buffer has very stale reports.

    m = b1 m + (1 - b1) D, v = b2 v + (1 - b2) D^2, u = max(u, v), x += eta' m / (sqrt(u) + epsilon), where D is the
    mean update of the buffer. Let tau be the largest staleness in the buffer: eta' = eta if tau <= `delay`, otherwise
    eta / tau (Wang et al., "FADAS: Towards Federated Adaptive Asynchronous Optimization", ICML 2024, Algorithm 2). With
    an infinite `delay` it is the paper's Algorithm 1.

    Difference from the authors' code: no bias correction of the moments, as in the paper's pseudo-code.

    Args:
        eta: Server learning rate.
        beta_1: Decay of the first moment.
        beta_2: Decay of the second moment.
        epsilon: Added to the denominator.
        delay: Largest staleness tau_c that does not reduce the step.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fadas").aggregate
        DelayAdaptive(eta=0.001, beta_1=0.9, beta_2=0.99, epsilon=1e-08, delay=1.0)
    """

    eta: Step = 1e-3
    beta_1: BelowOne = 0.9
    beta_2: BelowOne = 0.99
    epsilon: Step = 1e-8
    delay: Annotated[float, Bounds(ge=1)] = 1.0

    def init(self, setup: Setup) -> AMSGradMoments:
        return AMSGradMoments(np.zeros(0), np.zeros(0), np.zeros(0))

    def aggregate(
        self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]
    ) -> tuple[Weights, AMSGradMoments]:
        delta = mean_update(reports)
        old: AMSGradMoments = state.aggregate
        if len(old.first) != len(delta):
            old = AMSGradMoments(*np.zeros((3, len(delta))))
        first = self.beta_1 * old.first + (1 - self.beta_1) * delta
        second = self.beta_2 * old.second + (1 - self.beta_2) * delta**2
        moments = AMSGradMoments(first, second, np.maximum(old.largest, second))
        step = self.step_size(max(report.staleness for report in reports)) * first
        return (state.weights + step / (np.sqrt(moments.largest) + self.epsilon)).astype(np.float32), moments

    def step_size(self, staleness: int) -> float:
        """Return eta'.

        Args:
            staleness: Largest staleness in the buffer.

        Example:
            >>> DelayAdaptive(eta=0.1).step_size(1), DelayAdaptive(eta=0.1).step_size(4)
            (0.1, 0.025)
        """
        return self.eta if staleness <= self.delay else self.eta / staleness
