"""Small networks whose files the tests train, and one of which `tests/training/small.tflite` is the file."""

from __future__ import annotations

from typing import Any

import numpy as np

SHAPE, CLASSES = (2, 12), 3


def make() -> Any:
    """Every kind of layer that the model of `har` has."""
    from torch import nn

    return nn.Sequential(
        nn.ConstantPad1d((1, 1), 0.0),
        nn.Conv1d(2, 4, 3),
        nn.MaxPool1d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, CLASSES),
    )


def samples(count: int = 23, seed: int = 0) -> tuple[Any, Any]:
    """Classes that a linear rule separates."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, *SHAPE)).astype(np.float32)
    scores = features.reshape(count, -1) @ np.random.default_rng(99).normal(size=(24, CLASSES))
    return features, scores.argmax(axis=1)


def task(users: int | None = None) -> Any:
    """A task of a few clients of different sizes."""
    from fedbalancer import Task

    clients = {f"client-{n}": samples(30 + 5 * n, n) for n in range(users or 3)}
    return Task(clients=clients, test=samples(60, 98), model=make, name="small", learning_rate=0.1, rounds=3)
