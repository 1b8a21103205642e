"""A client's local training: its options, its batches, its work and its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import TrainingDiverged
from fedbalancer.core.types.layout import Arrays, FloatArray, IndexArray, Part, Weights


@dataclass(frozen=True)
class TrainOptions:
    """Options of a client's optimizer and batches.

    Args:
        optimizer: Optimizer of `torch.optim` as text (`core.optimizers`), or `custom` for the task's own.
        accumulate: Batches per step of the optimizer. The last step of an epoch may have fewer.
        dtype: Type in which the forward pass of a training computes (autocast): float32 or bfloat16.
        drop_last: Whether an epoch omits its last batch if that is short. A client with less than one batch trains it.
        batch_norm: What happens to the running statistics of batch norms. average: they are averaged like parameters.
            local: they stay on the client. forbid: a model with batch norms is refused.
        optimizer_state: Whether a client resets or keeps the optimizer's state, such as its momentum, between rounds.

    Example:
        >>> TrainOptions().is_plain, TrainOptions(optimizer="adamw").is_plain
        (True, False)
    """

    optimizer: str = "sgd"
    accumulate: int = 1
    dtype: Literal["float32", "bfloat16"] = "float32"
    drop_last: bool = False
    batch_norm: Literal["average", "local", "forbid"] = "average"
    optimizer_state: Literal["reset", "keep"] = "reset"

    @property
    def keeps_state(self) -> bool:
        """Whether clients keep the optimizer's state. Plain SGD has none."""
        return self.optimizer_state == "keep" and self.optimizer != "sgd"

    @property
    def is_plain(self) -> bool:
        """Whether every batch is one step of plain SGD."""
        return self.optimizer == "sgd" and self.has_kernels

    @property
    def has_kernels(self) -> bool:
        """Whether every batch is one step of SGD, plain or with momentum, which the fast backend has kernels for."""
        is_sgd = self.optimizer.partition("(")[0] == "sgd"
        return is_sgd and self.accumulate == 1 and self.dtype == "float32"


PLAIN = TrainOptions()
"""Plain SGD, one step per batch."""


Count = TypeVar("Count", int, NDArray[Any])

FORWARD_PASS_EPOCHS = 0.5
"""A forward pass over all data takes half the time of one training epoch."""


def batches_per_epoch(samples: Count, batch_size: int, most: int | None = None, drop_last: bool = False) -> Count:
    """Return floor((m - 1) / B) + 1, the number of batches of m samples including the short last one.

    Args:
        samples: Number of samples, or an array of numbers, which may be means.
        batch_size: Samples per batch.
        most: Upper bound. None: no bound.
        drop_last: Whether a short last batch does not count, unless it is the only one.

    Returns:
        The number of batches, at least 1.

    Example:
        >>> batches_per_epoch(11, 10), batches_per_epoch(95, 10, most=1), batches_per_epoch(np.array([1, 10, 11]), 10)
        (2, 1, array([1, 1, 2]))
        >>> batches_per_epoch(19, 10, drop_last=True), batches_per_epoch(9, 10, drop_last=True)
        (1, 1)
    """
    whole = samples // batch_size if drop_last else (samples - 1) // batch_size + 1
    if isinstance(whole, int):
        return max(whole if most is None else min(whole, most), 1)
    return np.asarray(np.maximum(whole if most is None else np.minimum(whole, most), 1))


STEP_BINS = 12
"""Number of bins of local steps: the first step, the next two, the next four, and so on; the last bin has the rest."""


def step_bin(steps: IndexArray) -> IndexArray:
    """Return the bin of each step.

    Args:
        steps: For each sample, the number of local steps before it was first seen.

    Example:
        >>> step_bin(np.array([0, 1, 2, 3, 6, 7, 10**9])).tolist()
        [0, 1, 1, 2, 2, 3, 11]
    """
    return np.asarray(np.minimum(np.frexp(steps + 1.0)[1] - 1, STEP_BINS - 1), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class ClientWork:
    """One local training, as a pure function of its fields.

    Args:
        client: Client id.
        indices: Sample numbers to train on.
        batches: Number of batches to train. Every epoch shuffles the samples again.
        batch_size: Samples per batch.
        learning_rate: Learning rate of the optimizer.
        mu: Weight of the proximal term.
        clip_norm: Largest norm of a step's gradient. None: no clipping.
        seed: Seed of the shuffles.
        epoch_batches: Batches after which an epoch ends. None: all batches.
        training: How batches become steps.
        train: The method's `LocalTraining`. None: plain training.
        state: The client's arrays from earlier rounds.
        arrays: Arrays from the server.
        part: The part of the model that the client trains. None: all of it.
    """

    client: str
    indices: IndexArray
    batches: int
    batch_size: int
    learning_rate: float
    mu: float
    clip_norm: float | None
    seed: int
    epoch_batches: int | None = None
    training: TrainOptions = PLAIN
    train: Any = None
    state: Arrays = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    part: Part | None = None

    @property
    def per_epoch(self) -> int:
        """Batches per epoch."""
        return batches_per_epoch(len(self.indices), self.batch_size, self.epoch_batches, self.training.drop_last)


@dataclass(frozen=True, eq=False)
class TrainResult:
    """The result of a `ClientWork`.

    Args:
        client: Client id.
        update: New weights minus old weights.
        seen: Sample numbers that were trained, in ascending order.
        losses: Loss of each of these samples when it was first seen, just before that step.
        steps: Number of batches trained before that. None if the trainer does not count them.
        state: Arrays that the client keeps.
        arrays: Arrays for the server.
    """

    client: str
    update: Weights
    seen: IndexArray
    losses: FloatArray
    steps: IndexArray | None = None
    state: Arrays = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class DivergedTraining:
    """A training or a forward pass without a result, because a loss or the update is not finite.

    Args:
        client: Client id.
        problem: The value that is not finite, and what to change.
    """

    client: str
    problem: str


Item = TypeVar("Item", ClientWork, str)
Result = TypeVar("Result")


def or_diverged(
    compute: Callable[[Any, Item], Result], weights: Weights | None, item: Item
) -> Result | DivergedTraining:
    """Return a client's result. If its training diverged, return why: this costs its report, not the run.

    Args:
        compute: Trains the client or computes its losses.
        weights: The model.
        item: The client's work or its id.
    """
    try:
        return compute(weights, item)
    except TrainingDiverged as error:
        client = item if isinstance(item, str) else item.client
        return DivergedTraining(client, str(error).removeprefix(f"client {client!r}: "))
