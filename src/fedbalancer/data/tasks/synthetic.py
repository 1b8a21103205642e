"""Synthetic(alpha, beta): a logistic regression whose users differ in their models and in their data.

User k has a true model W_k, b_k ~ N(u_k, 1) with u_k ~ N(0, alpha), and features x ~ N(v_k, S) with v_k ~ N(B_k, 1),
B_k ~ N(0, beta), S diagonal with S_jj = j^-1.2. The label is the argmax of softmax(W_k x + b_k). There are 60 features
and 10 classes, and a user has 50 + lognormal(4, 2) samples, so a few users have most of the data (T. Li et al.,
"Federated Optimization in Heterogeneous Networks", 2020; LEAF has such a generator too). alpha and beta are variances,
as in the paper's formulas.

u_k is one number that is added to the scores of all classes, so it cancels in the softmax, and alpha changes no label.
The users' models still differ, because every W_k is drawn separately.

Two differences keep the data bounded: sizes are at most `MOST_SAMPLES` of the scale, and the test data (a tenth of a
user's samples) are from at most 100 evenly spaced users. Samples are made on demand, so ten thousand users cost
nothing until they train.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.randomness import stream
from fedbalancer.core.task import Samples
from fedbalancer.core.types import IndexArray
from fedbalancer.data.task import Task

if TYPE_CHECKING:
    import torch

FEATURES = 60
CLASSES = 10
TEST_SHARE = 0.1
TEST_USERS = 100
MOST_SAMPLES = {"small": 400, "paper": 3000}
"""Largest number of samples of a user. About a fifth and a fortieth of the users reach it."""


@dataclass(frozen=True)
class SyntheticClients(Mapping[str, Samples]):
    """The training data of the users, made on demand.

    Args:
        users: Number of users.
        alpha: Variance of the users' model means.
        beta: Variance of the users' feature means.
        data_seed: Seed of the data.
        most_samples: Largest number of samples of a user.
    """

    users: int
    alpha: float
    beta: float
    data_seed: int
    most_samples: int

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Number of training samples by user."""
        total = self._totals
        return {f"u{user:05d}": int(size) for user, size in enumerate(total - _count_test_samples(total))}

    @cached_property
    def _totals(self) -> IndexArray:
        drawn = stream(self.data_seed, "synthetic sizes").lognormal(4.0, 2.0, self.users)
        return 50 + np.minimum(drawn, self.most_samples - 50).astype(np.int64)

    def __len__(self) -> int:
        return self.users

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __contains__(self, client: object) -> bool:
        return client in self.sizes

    def __getitem__(self, client: str) -> Samples:
        size = self.sizes[client]
        features, labels = self._all(client)
        return features[:size], labels[:size]

    def held_out(self, client: str) -> Samples:
        """Return the test samples of a user."""
        size = self.sizes[client]
        features, labels = self._all(client)
        return features[size:], labels[size:]

    def _all(self, client: str) -> Samples:
        rng = stream(self.data_seed, "synthetic", 0, client)
        model_mean, data_mean = rng.normal(0.0, np.sqrt([self.alpha, self.beta]))
        weights = rng.normal(model_mean, 1.0, (FEATURES, CLASSES))
        bias = rng.normal(model_mean, 1.0, CLASSES)
        centre = rng.normal(data_mean, 1.0, FEATURES)
        deviation = np.arange(1, FEATURES + 1) ** -0.6  # the square root of the variance j^-1.2
        features = rng.normal(centre, deviation, (self._totals[int(client[1:])], FEATURES))
        # The softmax keeps the order of its arguments, so the argmax needs no exponentials.
        return features.astype(np.float32), np.argmax(features @ weights + bias, axis=1)


def _count_test_samples(total: IndexArray) -> IndexArray:
    counts: IndexArray = np.maximum(1, np.floor(total * TEST_SHARE)).astype(np.int64)
    return counts


def make_model() -> torch.nn.Module:
    """Make the logistic regression."""
    import torch

    return torch.nn.Linear(FEATURES, CLASSES)


def load(
    scale: str = "small", users: int | None = None, *, alpha: float = 1.0, beta: float = 1.0, data_seed: int = 0
) -> Task:
    """Load the task.

    Args:
        scale: "small" or "paper".
        users: Number of users. Default: 30, as in the paper.
        alpha: Variance of the users' model means.
        beta: Variance of the users' feature means.
        data_seed: Seed of the data.

    Raises:
        BadSetting: If an argument is out of range.

    >>> load(users=10_000).sizes["u09999"] > 0
    True
    """
    if scale not in MOST_SAMPLES:
        raise UnknownName("scale", scale, MOST_SAMPLES)
    users = 30 if users is None else users
    if not 1 <= users <= 100_000:
        raise BadSetting(f"users is {users}, but synthetic can have 1 to 100000")
    if alpha < 0 or beta < 0:
        raise BadSetting(f"alpha is {alpha} and beta is {beta}, but both must be 0 or more")
    clients = SyntheticClients(users, alpha, beta, data_seed, MOST_SAMPLES[scale])
    tested = np.unique(np.linspace(0, users - 1, min(users, TEST_USERS)).astype(int))
    parts = [clients.held_out(f"u{user:05d}") for user in tested]
    return Task(
        clients=clients,
        test=(np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])),
        model=make_model,
        name="synthetic",
        variant=f"alpha={alpha:g} beta={beta:g} users={users}",
        learning_rate=0.01,
        clients_per_round=min(10, users),
        rounds=100,
        eval_every=5,
        prox_mu=1.0,
        latency="femnist",
        model_bytes=4 * (FEATURES + 1) * CLASSES,
        classes=CLASSES,
        notes={"alpha": alpha, "beta": beta, "data_seed": data_seed, "most_samples": MOST_SAMPLES[scale]},
    )
