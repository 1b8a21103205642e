"""A task small enough to run many times: eight clients, two classes, a linear model."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from fedbalancer.data import Task


def samples(count: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, 4)).astype(np.float32)
    return features, (features.sum(axis=1) > 0).astype(np.int64)


def linear() -> Any:
    import torch

    return torch.nn.Linear(4, 2)


def wide() -> Any:
    """A model whose weights are enough to travel through shared memory."""
    import torch

    return torch.nn.Sequential(torch.nn.Linear(4, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 2))


def adapted() -> Any:
    """A frozen layer that is drawn at random, a batch norm, and a trained layer."""
    import torch

    net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2))
    net[0].requires_grad_(False)
    return net


def load_wide() -> Task:
    """Return the task with a wide model and a test in several pieces."""
    return load(model=wide, test=samples(900, 99))


def load(**changes: Any) -> Task:
    values: dict[str, Any] = {
        "name": "tiny",
        "clients": {f"c{number}": samples(20 + 12 * number, number) for number in range(8)},
        "test": samples(200, 99),
        "model": linear,
        "clients_per_round": 3,
        "rounds": 6,
        "eval_every": 2,
        "learning_rate": 0.05,
        "latency": "har",
    }
    return Task(**{**values, **changes})


def counted_loss(file: str, scores: Any, labels: Any) -> Any:
    """The usual loss, which leaves a byte in a file whenever it is asked, and takes long enough to be worth a file."""
    import torch

    time.sleep(0.001)
    with open(file, "ab") as counter:
        counter.write(b".")
    return torch.nn.functional.cross_entropy(scores, labels, reduction="none")


def plain_loss(scores: Any, labels: Any) -> Any:
    """The usual loss, as one of the user's own."""
    import torch

    return torch.nn.functional.cross_entropy(scores, labels, reduction="none")


def fourth_power(outputs: Any, labels: Any) -> Any:
    """A loss whose training diverges with a large learning rate."""
    return ((outputs[:, 0] - labels) ** 2) ** 2


def decaying(parameters: Any, lr: float) -> Any:
    """An optimizer of the user's own."""
    import torch

    return torch.optim.AdamW(parameters, lr=lr, weight_decay=0.5)


def load_named(*, scale: str = "small", users: int | None = None) -> Task:
    """The shape that the registry calls."""
    return load()
