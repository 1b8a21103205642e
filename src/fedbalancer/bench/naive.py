"""What one writes first, and the measure of everything else: for every client a copy of the module, a DataLoader and an
optimizer, with torch on all cores."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING

from fedbalancer.client.tensors import per_sample_loss, to_tensors
from fedbalancer.task import Task

if TYPE_CHECKING:
    import torch

    from fedbalancer.client.tensors import Tensors


class NaiveLoop:
    """FedAvg over all clients of a task."""

    def __init__(self, task: Task, threads: int) -> None:
        self.task = task
        self.threads = threads
        self.module: torch.nn.Module = task.model()
        self._data = {client: to_tensors(samples) for client, samples in task.clients.items()}
        self._loss = per_sample_loss(task.loss)

    def round_s(self) -> float:
        """Seconds of a round: train every client from the same weights, then take the mean weighted by samples."""
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        begun = time.perf_counter()
        try:
            self._round()
        finally:
            torch.set_num_threads(before)
        return time.perf_counter() - begun

    def _round(self) -> None:
        import torch

        total = sum(len(labels) for _, labels in self._data.values())
        mean = [torch.zeros_like(parameter) for parameter in self.module.parameters()]
        for data in self._data.values():
            local = self._trained(data)
            for part, parameter in zip(mean, local.parameters(), strict=True):
                part.add_(parameter.detach(), alpha=len(data[1]) / total)
        with torch.no_grad():
            for parameter, part in zip(self.module.parameters(), mean, strict=True):
                parameter.copy_(part)

    def _trained(self, data: Tensors) -> torch.nn.Module:
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        module = copy.deepcopy(self.module).train()
        optimizer = torch.optim.SGD(module.parameters(), lr=self.task.learning_rate)
        for _ in range(self.task.epochs):
            for features, labels in DataLoader(TensorDataset(*data), batch_size=self.task.batch_size, shuffle=True):
                optimizer.zero_grad()
                torch.autograd.backward(self._loss(module(features), labels).mean())
                if self.task.clip_norm is not None:
                    torch.nn.utils.clip_grad_norm_(module.parameters(), self.task.clip_norm)
                optimizer.step()
        return module
