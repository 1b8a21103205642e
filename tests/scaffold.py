"""SCAFFOLD and other methods of the slots `train` and `part`, in a module that worker processes can import."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.contracts import Aggregator, LocalRun, LocalTraining, PartPolicy
from fedbalancer.core.types import Arrays, ClientReport, Layout, Order, Outside, ServerState, Setup, Shapes, Weights
from fedbalancer.server.aggregate.mean import mean_update, sort_by_client


@dataclass(frozen=True)
class Scaffold(LocalTraining):
    """SCAFFOLD's clients, with option II."""

    def client_state(self, layout: Layout) -> Shapes:
        return {"c": (layout.parameters,)}

    down_arrays = up_arrays = client_state

    def gradient(self, gradient: Weights, weights: Weights, run: LocalRun) -> Weights:
        return gradient - run.state["c"] + run.arrays["c"]

    def finish(self, update: Weights, run: LocalRun) -> Weights:
        own = run.state["c"] - run.arrays["c"] - update / (run.steps * run.work.learning_rate)
        run.sent["c"] = own - run.state["c"]
        run.state["c"] = own
        return update


@dataclass(frozen=True, eq=False)
class Variate:
    c: Weights


@dataclass(frozen=True)
class ScaffoldServer(Aggregator):
    """SCAFFOLD's server."""

    def init(self, setup: Setup) -> Variate:
        return Variate(np.zeros(0, dtype=np.float32))

    def order_arrays(self, setup: Setup, state: ServerState) -> Arrays:
        return {"c": state.aggregate.c if len(state.aggregate.c) else np.zeros_like(state.weights)}

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, Variate]:
        c = self.order_arrays(setup, state)["c"].astype(np.float64)
        for report in sort_by_client(reports):
            c += report.arrays["c"] / len(setup.ledger.clients)
        return (state.weights + mean_update(reports)).astype(np.float32), Variate(c.astype(np.float32))


@dataclass(frozen=True)
class Ditto(LocalTraining):
    """Ditto: a personal model beside the global one, pulled towards it."""

    passes: ClassVar[float] = 2.0
    pull: float = 0.1

    def client_state(self, layout: Layout) -> Shapes:
        return {"personal": (layout.parameters,)}

    def gradient(self, gradient: Weights, weights: Weights, run: LocalRun) -> Weights:
        assert run.gradient_at is not None
        mine = run.start if run.is_first and run.steps == 0 else run.state["personal"]
        step = run.gradient_at(mine) + self.pull * (mine - run.start)
        run.state["personal"] = mine - np.float32(run.work.learning_rate) * step
        return gradient


@dataclass(frozen=True)
class Doubled(LocalTraining):
    """Twice the loss, by torch."""

    def objective(self, loss: Any, outputs: Any, labels: Any, run: LocalRun) -> Any:
        return 2 * loss


@dataclass(frozen=True)
class FirstRows(PartPolicy):
    """The first half of the parameters for the slower half of the clients, all for the others."""

    outside: ClassVar[Outside] = "absent"

    def mask(self, layout: Layout, client: str, rank: float, order: Order) -> NDArray[np.bool_]:
        mask = np.ones(layout.parameters, dtype=bool)
        mask[layout.parameters // 2 :] = rank >= 0.5
        return mask


@dataclass(frozen=True)
class FrozenBias(FirstRows):
    """The bias is not trained."""

    outside: ClassVar[Outside] = "frozen"

    def mask(self, layout: Layout, client: str, rank: float, order: Order) -> NDArray[np.bool_]:
        mask = np.ones(layout.parameters, dtype=bool)
        mask[layout.spans["bias"]] = False
        return mask
