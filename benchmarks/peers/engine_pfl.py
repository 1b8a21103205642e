"""pfl-research's simulation: FederatedAveraging on the SimulatedBackend, as one process with all threads, or as one
process a core, which its own distributed launch makes one run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn
from work import Work, orders, save_weights


class WithLoss(nn.Module):
    """The module with the two methods that pfl asks for."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.train()
        return nn.functional.cross_entropy(self.module(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        return {}


class InOrder(PyTorchTensorDataset):
    """A user's samples in the order that every epoch is given. pfl itself would not shuffle; here it is one gather an
    epoch, and batches are slices as they are in pfl."""

    def __init__(self, work: Work, client: int, number: int) -> None:
        super().__init__(work.samples(client), user_id=str(client))
        self._epochs = (work.order(number, epoch, client) for epoch in range(len(work._data[2][0])))

    def iter(self, batch_size: int | None) -> Iterator[list[torch.Tensor]]:
        order = next(self._epochs)
        x, y = (part[order] for part in self.raw_data)
        return map(list, zip(x.split(batch_size), y.split(batch_size), strict=True))


class WithoutEvaluation(FederatedAveraging):
    """pfl evaluates all users in the first round; the others do not, so it is left out."""

    def get_next_central_contexts(self, *args: Any, **kwargs: Any) -> Any:
        contexts, model, metrics = super().get_next_central_contexts(*args, **kwargs)
        return contexts and tuple(replace(context, do_evaluation=False) for context in contexts), model, metrics


class Rounds(TrainingProcessCallback):
    """The number of the round, and the seconds of those before it."""

    def __init__(self) -> None:
        self.number, self.seconds, self.begun = 1, [], time.perf_counter()

    def after_central_iteration(self, metrics: Metrics, model: Any, *, central_iteration: int) -> tuple[bool, Metrics]:
        now = time.perf_counter()
        self.seconds.append(now - self.begun)
        self.begun, self.number = now, self.number + 1
        return False, Metrics()


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Rounds as ordered; seconds of each."""
    np.random.seed(0)  # noqa: NPY002 - pfl draws users from it, and the processes must draw the same ones
    work = Work(order["folder"], order["workload"])
    module = WithLoss(work.module())
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    sampler = get_user_sampler("minimize_reuse", list(work.clients))
    parameters = NNAlgorithmParams(
        central_num_iterations=order["rounds"],
        evaluation_frequency=order["rounds"] + 1,
        train_cohort_size=len(work.clients),
        val_cohort_size=None,
    )
    training = NNTrainHyperParams(
        local_num_epochs=order["epochs"],
        local_learning_rate=order["learning_rate"],
        local_batch_size=work.workload.batch_size,
    )
    rounds = Rounds()
    data = FederatedDataset(lambda user: InOrder(work, user, rounds.number), sampler)
    backend = SimulatedBackend(data, data, [WeightByDatapoints()])
    rounds.begun = time.perf_counter()
    WithoutEvaluation().run(parameters, backend, model, training, callbacks=[rounds], send_metrics_to_platform=False)
    if os.environ.get("PFL_WORKER_RANK", "0") == "0":
        save_weights(module, order["out"])
    return {"seconds": rounds.seconds}


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ["PEERS_THREADS"]))
    for order, answer in orders():
        answer(run(order))
