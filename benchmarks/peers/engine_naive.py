"""The usual first version: a copy of the module, a DataLoader and an optimizer per client, torch on all cores."""

from __future__ import annotations

import copy
import os
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from work import Work, orders, save_weights


def train_client(
    module: nn.Module, work: Work, client: int, number: int, epochs: int, learning_rate: float,
    optimizer: Any = torch.optim.SGD,
) -> None:  # fmt: skip
    """Train the client's samples in their given order, with plain SGD or another optimizer."""
    data = TensorDataset(*work.samples(client))
    optimizer = optimizer((each for each in module.parameters() if each.requires_grad), lr=learning_rate)
    module.train()
    for epoch in range(epochs):
        order = work.order(number, epoch, client).tolist()
        for x, y in DataLoader(data, batch_size=work.workload.batch_size, sampler=order):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()


def one_round(module: nn.Module, work: Work, number: int, epochs: int, learning_rate: float) -> None:
    """Train all clients and put the weighted mean into `module`."""
    total = [torch.zeros_like(parameter) for parameter in module.parameters()]
    for client in work.clients:
        local = copy.deepcopy(module)
        train_client(local, work, client, number, epochs, learning_rate)
        share = work.sizes[client] / sum(work.sizes)
        for mean, parameter in zip(total, local.parameters(), strict=True):
            mean.add_(parameter.detach(), alpha=share)
    with torch.no_grad():
        for parameter, mean in zip(module.parameters(), total, strict=True):
            parameter.copy_(mean)


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Rounds as ordered; seconds of each."""
    work = Work(order["folder"], order["workload"])
    module = work.module()
    seconds = []
    for number in range(1, order["rounds"] + 1):
        begun = time.perf_counter()
        one_round(module, work, number, order["epochs"], order["learning_rate"])
        seconds.append(time.perf_counter() - begun)
    save_weights(module, order["out"])
    return {"seconds": seconds}


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ["PEERS_CORES"]))
    for order, answer in orders():
        answer(run(order))
