"""Aggregators that correct the drift of clients with different data: SCAFFOLD, FedDyn and MIFA.

Each belongs to a policy in slot `train` (`client/training.py`), whose clients keep a vector between their rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.fields import Step
from fedbalancer.core.types import Arrays, ClientReport, FloatArray, ServerState, Setup, Weights
from fedbalancer.server.aggregate.mean import mean_update


def _requires(method: Any, train: str) -> str | None:
    """Return why an aggregator that understands one policy in slot `train` only cannot work with a method, or None."""
    name = type(method.train).__name__
    return None if name == train else f"aggregate {type(method.aggregate).__name__} needs train {train}, not {name}"


def _plain_mean(reports: Sequence[ClientReport]) -> FloatArray:
    """Return the mean update, in which all clients count equally."""
    return mean_update([replace(report, weight=1.0) for report in reports])


@dataclass(frozen=True, eq=False)
class Variate:
    """State of `ScaffoldServer`.

    Args:
        value: The control variate c; empty before the first round with reports.
    """

    value: FloatArray


@dataclass(frozen=True)
class ScaffoldServer(Aggregator):
    """SCAFFOLD on the server: x += eta mean(D), c += sum(change of c_i) / N, for N clients in total.

    All clients count equally, as in the paper's Algorithm 1. Its clients are `Scaffold`. The clients send and receive a
    control variate with every model, so the bytes double in both directions.

    Args:
        eta: Server learning rate.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("scaffold").aggregate
        ScaffoldServer(eta=1.0)
    """

    eta: Step = 1.0

    def refuses(self, method: Any) -> str | None:
        return _requires(method, "Scaffold")

    def init(self, setup: Setup) -> Variate:
        return Variate(np.zeros(0))

    def order_arrays(self, setup: Setup, state: ServerState) -> Arrays:
        return {"variate": _or_zeros(state.aggregate.value, state.weights).astype(np.float32)}

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, Variate]:
        changes = [replace(report, update=report.arrays["variate"]) for report in reports]
        share = len(reports) / len(state.ledger.clients)
        variate = _or_zeros(state.aggregate.value, state.weights) + share * _plain_mean(changes)
        return (state.weights + self.eta * _plain_mean(reports)).astype(np.float32), Variate(variate)


@dataclass(frozen=True, eq=False)
class Drift:
    """State of `FedDynServer`.

    Args:
        value: The paper's h, divided by -alpha; empty before the first round with reports.
    """

    value: FloatArray


@dataclass(frozen=True)
class FedDynServer(Aggregator):
    """FedDyn on the server: h -= alpha sum(D) / N, x = mean(y) - h / alpha, for N clients in total.

    y are the clients' models, and D = y - x their updates. All clients count equally, as in the paper. The state is
    -h / alpha, which does not depend on alpha. Its clients are `FedDyn`.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("feddyn").aggregate
        FedDynServer()
    """

    def refuses(self, method: Any) -> str | None:
        return _requires(method, "FedDyn")

    def init(self, setup: Setup) -> Drift:
        return Drift(np.zeros(0))

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, Drift]:
        mean, share = _plain_mean(reports), len(reports) / len(state.ledger.clients)
        drift = _or_zeros(state.aggregate.value, state.weights) + share * mean
        return (state.weights + mean + drift).astype(np.float32), Drift(drift)


@dataclass(frozen=True, eq=False)
class LatestUpdates:
    """State of `MIFAServer`.

    Args:
        total: Sum over all clients of their latest updates, divided by their learning rates; empty before the first.
        heard: Number of clients that have sent one.
    """

    total: FloatArray
    heard: int = 0


@dataclass(frozen=True)
class MIFAServer(Aggregator):
    """MIFA on the server: x += eta rate mean(G), where G has the latest update of every client, however old.

    The server keeps the sum of all G; a client adds what changed (`MIFA`). A client that is not available is therefore
    represented by its last update, and no client counts more because it is available more often.

    Difference from the paper: it assumes that all clients report in the first round. Here, the mean is over the clients
    that have reported.

    Args:
        eta: Server learning rate.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("mifa").aggregate
        MIFAServer(eta=1.0)
    """

    eta: Step = 1.0

    def refuses(self, method: Any) -> str | None:
        return _requires(method, "MIFA")

    def init(self, setup: Setup) -> LatestUpdates:
        return LatestUpdates(np.zeros(0))

    def aggregate(
        self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]
    ) -> tuple[Weights, LatestUpdates]:
        total = _or_zeros(state.aggregate.total, state.weights) + len(reports) * _plain_mean(reports)
        heard = int(state.ledger.explored.sum())
        step = self.eta * setup.rate_in(state.round + 1) / max(heard, 1)
        return (state.weights + step * total).astype(np.float32), LatestUpdates(total, heard)


def _or_zeros(value: FloatArray, weights: Weights) -> FloatArray:
    return value if len(value) else np.zeros(len(weights))
