"""Table 1 at the paper's shape: published users, cohort, sizes, devices and deadlines; generated data, narrow models.

    python benchmarks/paper_shape.py rows [--shapes femnist,celeba,reddit] [--seeds 0..2] [--out docs/results/paper-shape]
    python benchmarks/paper_shape.py vary [--shapes reddit] [--properties sizes,cohort]
    python benchmarks/paper_shape.py sizes

`rows` runs Table 1's methods on every shape. `vary` changes one property of a shape at a time and runs FedAvg, Prox and
FedBalancer. `sizes` prints how unequal the clients are. Every comparison is a folder under --runs; finished runs are not
repeated.

A user's features are normal around the user's own centre. The label is drawn from the softmax of a linear map of them,
tilted by the user's own preference for some labels. Nothing is downloaded, and the files of the tasks are not needed.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fedbalancer as fb
from fedbalancer.cli.options import parse_seeds
from fedbalancer.core.files import write_text
from fedbalancer.core.randomness import stream
from fedbalancer.data.clients import SlicedClients
from fedbalancer.data.sizes import lognormal_sizes
from fedbalancer.data.tasks import celeba, femnist, reddit

FEATURES = 24


@dataclass(frozen=True)
class Shape:
    """A task of the paper's shape.

    Args:
        name: Task of the paper, whose batch latencies are used.
        users: Number of users, those for tests included.
        samples: Number of samples of all users.
        variation: Standard deviation of the samples per user over their mean.
        least: Smallest number of samples of a user.
        most: Largest number of samples of a user.
        split: Shares of a user's samples that train and test, or of the users, if `by_user`.
        by_user: Whether whole users train or test.
        model_bytes: Size of the published model.
        classes: Number of labels.
        zipf: Power of the frequency of the labels. 0: all labels are equally frequent.
        skew: Concentration of a user's own frequencies of labels (Dirichlet), per label. inf: no label skew.
        style: Standard deviation of the users' centres.
        sharpness: Scale of the true scores; the higher, the more certain the labels.
        hidden: Units of the model's hidden layer. 0: a linear model.
        settings: Further settings of the task.
    """

    name: str
    users: int
    samples: int
    variation: float
    least: int
    most: int
    split: tuple[float, float]
    by_user: bool
    model_bytes: int
    classes: int
    zipf: float
    skew: float
    style: float
    sharpness: float
    hidden: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def make(self) -> fb.Task:
        """Make the task. The data depend on the shape only."""
        sizes = lognormal_sizes(self.users, self.samples, self.variation, least=self.least, most=self.most)
        draws = stream(0, "paper shape")
        teacher = draws.normal(0, self.sharpness / math.sqrt(FEATURES), (FEATURES, self.classes))
        base = np.arange(1, self.classes + 1) ** -self.zipf
        data = [_user(int(size), teacher, base / base.sum(), self, user) for user, size in enumerate(sizes)]
        train, test = self._divide(data)
        names = tuple(f"u{user:03}" for user in range(len(train)))
        lengths = tuple(len(labels) for _, labels in train)
        return fb.Task(
            clients=SlicedClients(names, lengths, *_joined(train)), test=_joined(test), name=f"{self.name} shape",
            model=partial(make_model, self.classes, self.hidden), latency=self.name, model_bytes=self.model_bytes,
            classes=self.classes, **self.settings,
        )  # fmt: skip

    def _divide(self, data: Sequence[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
        first, last = self.split
        if self.by_user:
            ends = math.floor(first * len(data) + 0.5)
            return list(data[:ends]), list(data[ends:])
        train = [(x[: max(1, round(first * len(y)))], y[: max(1, round(first * len(y)))]) for x, y in data]
        test = [(x[len(y) - round(last * len(y)) :], y[len(y) - round(last * len(y)) :]) for x, y in data]
        return train, test


def _user(size: int, teacher: Any, base: Any, shape: Shape, user: int) -> tuple[Any, Any]:
    draws = stream(1, "paper shape", 0, str(user))
    own = draws.dirichlet(shape.skew * shape.classes * base) if math.isfinite(shape.skew) else base
    features = draws.normal(0, 1, (size, FEATURES)) + draws.normal(0, shape.style, FEATURES)
    scores = features @ teacher + np.log(np.maximum(own, 1e-9))
    labels = np.argmax(scores + draws.gumbel(size=scores.shape), axis=1)
    return features.astype(np.float32), labels


def _joined(parts: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def make_model(classes: int, hidden: int) -> Any:
    """Make the model: linear, or with one hidden layer."""
    from torch import nn

    from fedbalancer.data.tasks.layers import init_glorot

    if not hidden:
        return init_glorot(nn.Sequential(nn.Linear(FEATURES, classes)))
    return init_glorot(nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, classes)))


COMMON = {"batch_size": 10, "epochs": 5, "clients_per_round": 100, "eval_every": 1_000_000}
SHAPES = {
    "femnist": Shape(
        "femnist", 712, 157_132, 88.94 / 226.83, 10, 500, (0.9, 0.1), True, femnist.MODEL_BYTES, classes=62, zipf=0.0,
        skew=5.0, style=0.3, sharpness=8.0, settings={**COMMON, "rounds": 60, "learning_rate": 0.002},
    ),
    "celeba": Shape(
        "celeba", 915, 19_923, 7.63 / 21.44, 5, 35, (0.9, 0.1), True, celeba.MODEL_BYTES, classes=2, zipf=0.0,
        skew=1.0, style=0.5, sharpness=3.0, settings={**COMMON, "rounds": 100, "learning_rate": 0.003, "prox_mu": 0.01},
    ),
    "reddit": Shape(
        "reddit", 813, 32_680, 62.95 / 34.07, 5, 1000, (0.6, 0.2), False, reddit.MODEL_BYTES, classes=100, zipf=0.7,
        skew=1.0, style=0.3, sharpness=2.0,
        settings={**COMMON, "rounds": 100, "learning_rate": 0.003, "sample_selection_deadline": 2},
    ),
}  # fmt: skip
