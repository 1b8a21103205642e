"""A learning problem: the clients' data, the test data and the model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbalancer.core.errors import BadData

Samples = tuple[NDArray[Any], NDArray[Any]]
"""Features and labels, one row per sample."""

TEST = "the test data"


@runtime_checkable
class MadeOnDemand(Protocol):
    """A mapping of clients whose samples are created on access.

    It knows all sizes in advance. A task does not check such clients, so ten thousand of them cost nothing.
    """

    @property
    def sizes(self) -> Mapping[str, int]:
        """Number of samples per client, in the order of the keys."""


@dataclass(frozen=True, eq=False, repr=False)
class BaseTask:
    """The fields of a learning problem, which is all that engines and trainers need. Users build a `fedbalancer.Task`.

    Args:
        clients: Samples (features, labels) of every client, by client id. NumPy arrays, lists or torch tensors.
        test: Samples to evaluate the model on.
        model: Function without arguments that returns a new `torch.nn.Module`.
        name: Name of the task.
        variant: Name of the data set, where a task has several.
        batch_size: Samples per batch.
        epochs: Local epochs per round.
        learning_rate: Learning rate of SGD.
        clients_per_round: Number of clients selected per round.
        rounds: Number of rounds. In a comparison, every method has the time that FedAvg+1T needs for them.
        eval_every: Number of rounds between evaluations.
        clip_norm: Largest norm of a batch's gradient. None: no clipping.
        prox_mu: Weight of the proximal term, for methods that have one.
        sample_selection_deadline: Deadline of the method `sampleselection`, as a multiple of T.
        loss: "cross_entropy", or a function of (outputs, labels) that returns one value per sample.
        metric: "accuracy", or a function of (outputs, labels) that returns the number of correct answers and their
            possible number.
        latency: Row of batch latencies of the device model: the name of a task of the paper, or a mapping of slow, mid
            and fast to (mean, standard deviation) in milliseconds. Default: femnist.
        devices: Devices on which runs of this task are simulated, unless a run names others; see `RunOptions`.
        model_bytes: Size of the model on the network. Default: 4 bytes per parameter.
        classes: Number of classes. None if the labels are not classes.
        notes: Facts about the data, for summaries.
    """

    clients: Mapping[str, Samples]
    test: Samples
    model: Callable[[], Any]
    name: str = "custom"
    variant: str = ""
    batch_size: int = 10
    epochs: int = 5
    learning_rate: float = 0.01
    clients_per_round: int = 10
    rounds: int = 50
    eval_every: int = 5
    clip_norm: float | None = None
    prox_mu: float = 0.0
    sample_selection_deadline: int = 1
    loss: str | Callable[[Any, Any], Any] = "cross_entropy"
    metric: str | Callable[[Any, Any], tuple[float, float]] = "accuracy"
    latency: str | Mapping[str, tuple[float, float]] | None = None
    devices: Any = None
    model_bytes: int | None = None
    classes: int | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.clients:
            raise BadData(f"task {self.name!r} has no clients; give at least one as an id and (features, labels)")
        for client in self.clients:
            if not isinstance(client, str):
                raise BadData(
                    f"client {client!r} is named by {type(client).__name__}; ids are text: use {str(client)!r}"
                )
        if self.model_bytes is not None and not (isinstance(self.model_bytes, int) and self.model_bytes >= 1):
            raise BadData(f"model_bytes = {self.model_bytes!r} must be a whole number of bytes, at least 1")
        parts: dict[str, Samples] = {}
        if isinstance(self.clients, MadeOnDemand):
            for client, size in self.clients.sizes.items():
                if size < 1:
                    raise BadData(f"client {client!r} has no samples; leave it out or give it at least one")
        else:
            parts = {f"client {client!r}": samples for client, samples in self.clients.items()}
        parts[TEST] = self.test
        arrays = {where: check_samples(samples, where, self.classes) for where, samples in parts.items()}
        check_alike(arrays)
        self._keep_arrays(parts, arrays)

    def _keep_arrays(self, parts: Mapping[str, Samples], arrays: dict[str, Samples]) -> None:
        """Replace lists and tensors by arrays."""
        if all(isinstance(part, np.ndarray) for samples in parts.values() for part in samples):
            return
        object.__setattr__(self, "test", arrays.pop(TEST))
        if arrays:  # none are here if they are made on demand
            object.__setattr__(self, "clients", dict(zip(self.clients, arrays.values(), strict=True)))

    def __repr__(self) -> str:
        sizes = self.sizes.values()
        name = f"{self.name} ({self.variant})" if self.variant else self.name
        return f"Task({name}: {len(sizes):,} clients, {sum(sizes):,} samples, {len(self.test[1]):,} to test)"

    @property
    def sizes(self) -> dict[str, int]:
        """Number of samples per client, in the order of the clients."""
        if isinstance(self.clients, MadeOnDemand):
            return dict(self.clients.sizes)
        return {client: len(labels) for client, (_, labels) in self.clients.items()}

    def labels(self, client: str) -> NDArray[Any]:
        """Return the labels of a client's samples."""
        return self.clients[client][1]

    def settings(self) -> dict[str, Any]:
        """Return the values that a configuration or `--set` may override."""
        names = (
            "batch_size", "epochs", "learning_rate", "clients_per_round", "rounds", "eval_every", "clip_norm",
            "prox_mu", "sample_selection_deadline",
        )  # fmt: skip
        values = {name: getattr(self, name) for name in names}
        if isinstance(self.latency, str):
            values["latency"] = self.latency
        return values


def check_samples(samples: Samples, where: str, classes: int | None) -> Samples:
    """Return samples as arrays.

    Args:
        samples: Features and labels.
        where: Whose samples these are, for the message.
        classes: Number of classes. None if the labels are not classes.

    Raises:
        BadData: If the samples cannot be trained on; the message names the place and the index.
    """
    try:
        features, labels = map(as_array, samples)
    except (TypeError, ValueError) as error:
        raise BadData(f"{where} must be a pair (features, labels) of arrays, not {type(samples).__name__}") from error
    if not features.ndim or not labels.ndim:
        raise BadData(f"{where} must have one row of features and one label per sample, not single values")
    if len(features) != len(labels):
        raise BadData(f"{where} has {len(features)} features but {len(labels)} labels")
    if len(labels) == 0:
        raise BadData(f"{where} has no samples; leave it out or give it at least one")
    if features.dtype.kind == "f" and not np.isfinite(features).all():
        bad = int(np.flatnonzero(~np.isfinite(features.reshape(len(features), -1)).all(axis=1))[0])
        raise BadData(f"{where} has a NaN or infinite feature in sample {bad}")
    if labels.dtype.kind in "iu" and (labels.min() < 0 or (classes is not None and labels.max() >= classes)):
        by_sample = labels.reshape(len(labels), -1)
        wrong = (by_sample < 0) | (by_sample >= (classes if classes is not None else np.inf))
        sample, place = np.argwhere(wrong)[0]
        top = f"0 to {classes - 1}" if classes is not None else "0 or more"
        raise BadData(f"{where} has label {by_sample[sample, place]} in sample {sample}; labels must be {top}")
    return features, labels


def as_array(values: Any) -> NDArray[Any]:
    """Return values as a NumPy array. Torch tensors may be on any device and require gradients."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype is torch.bfloat16 else values  # NumPy has no such type
    return np.asarray(values)


def check_alike(parts: Mapping[str, Samples]) -> None:
    """Check that all parts have the same shapes and types, because a compiled kernel is made for one kind of samples.

    Args:
        parts: Samples by the place they come from.

    Raises:
        BadData: If they differ.
    """
    check_shapes(parts)
    for noun, place, floats in (("features", 0, ("f", "b", "u1")), ("labels", 1, ("f",))):
        types = {where: _trains_as(part[place], where, floats) for where, part in parts.items()}
        _check_same({where: f"{noun} that train as {name}" for where, name in types.items()})


def check_shapes(parts: Mapping[str, Samples]) -> None:
    """Check that features and labels have the same shapes in all parts."""
    _check_same({where: f"samples of shape {_shape(features)}" for where, (features, _) in parts.items()})
    _check_same({where: f"labels of shape {_shape(labels)}" for where, (_, labels) in parts.items()})


def _shape(array: ArrayLike) -> tuple[int, ...]:
    """Return the shape of one row as a plain tuple."""
    return tuple(np.shape(array)[1:])


def _check_same(parts: Mapping[str, str]) -> None:
    first = next(iter(parts))
    for where, has in parts.items():
        if has != parts[first]:
            raise BadData(f"{where} has {has}, but {first} has {parts[first]}; all of a task must be of one kind")


def _trains_as(array: ArrayLike, where: str, floats: tuple[str, ...]) -> str:
    """Return the type in which values reach a model: float32 for numpy codes in `floats`, int64 for other numbers."""
    dtype = as_array(array).dtype
    if dtype.kind not in "fiub":
        raise BadData(f"{where} has values of type {dtype}; features and labels must be numbers")
    return "float32" if dtype.str[1:].startswith(floats) else "int64"


def check_client(samples: Samples, client: str, test: Samples, classes: int | None) -> Samples:
    """Return a client's samples as arrays, after checking that they are like the test data.

    Args:
        samples: Features and labels.
        client: The client's id.
        test: The test data.
        classes: Number of classes; None if labels are not classes.

    Raises:
        BadData: If shape, type or labels differ.
    """
    samples = as_array(samples[0]), as_array(samples[1])
    where = f"client {client!r}"
    check_alike({TEST: test, where: samples})
    if classes is not None:
        check_labels(np.asarray(samples[1]), where, classes)
    return samples


def check_labels(labels: NDArray[Any], where: str, classes: int) -> None:
    """Check that the labels are classes of the model.

    Args:
        labels: The labels.
        where: Whose labels they are, for the message.
        classes: Number of the model's outputs.

    Raises:
        BadData: If they are not; the message names the sample.
    """
    if labels.dtype.kind not in "iub" or labels.ndim != 1:
        got = f"{labels.dtype} of shape {labels.shape}"
        raise BadData(f"{where}: the cross-entropy needs one whole number per sample as labels, not {got}")
    bad = np.flatnonzero(labels >= classes)
    if len(bad):
        raise BadData(
            f"{where} has label {labels[bad[0]]} in sample {bad[0]}, but the model has {classes} outputs; "
            f"labels must be 0 to {classes - 1}, or the model needs {labels.max() + 1} outputs"
        )
