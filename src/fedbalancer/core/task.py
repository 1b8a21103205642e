"""A learning problem: the clients' data, the test data and the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.cost import CUSTOM, ESTIMATED
from fedbalancer.core.datasets import to_samples
from fedbalancer.core.errors import BadData
from fedbalancer.core.metrics import Metric, Metrics, read_metrics
from fedbalancer.core.optimizers import SGD, optimizer_text
from fedbalancer.core.samples import (
    IGNORED,
    Ragged,
    as_array,
    check_part,
    columns_of,
    count_rows,
    describe,
    match_ragged,
)
from fedbalancer.core.schedules import RateFunction, Schedule, read_schedule

Samples = tuple[Any, Any]
"""Features and labels, one row per sample. Both are arrays, or what `core.samples` lists."""

TEST = "the test data"


@runtime_checkable
class MadeOnDemand(Protocol):
    """A mapping of clients whose samples are created on access.

    It knows all sizes in advance. A task does not check such clients, so ten thousand of them cost nothing.
    """

    @property
    def sizes(self) -> Mapping[str, int]:
        """Number of samples per client, in the order of the keys."""


@dataclass(frozen=True, eq=False)
class CountedClients(Mapping[str, Any]):
    """A mapping of clients that does not know its sizes, with the sizes as they were counted once.

    Args:
        clients: The mapping.
        sizes: Number of samples per client.
    """

    clients: Mapping[str, Any]
    sizes: Mapping[str, int]

    def __getitem__(self, client: str) -> Any:
        return self.clients[client]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True, eq=False, repr=False)
class BaseTask:
    """The fields of a learning problem, which is all that engines and trainers need. Users build a `fedbalancer.Task`.

    Args:
        clients: Samples of every client, by client id: (features, labels) or a map-style data set of torch or Hugging
            Face. Features are an array, a tensor, a list, a `Ragged`, or a dictionary or tuple of these. Labels may be
            None. A mapping with `sizes` creates samples on access.
        test: Samples to evaluate the model on.
        model: Function without arguments that returns a new `torch.nn.Module`. Parameters with `requires_grad=False`
            are neither trained nor sent.
        name: Name of the task.
        variant: Name of the data set, where a task has several.
        batch_size: Samples per batch.
        epochs: Local epochs per round.
        learning_rate: Learning rate, or a function of the round number (from 1) that returns it.
        schedule: Multiplies the learning rate: one of `fedbalancer.schedules`, or its text, as in "cosine(rounds=50)".
        optimizer: Local optimizer: a class of `torch.optim`, a partial of one, its text, as in
            "adamw(weight_decay=0.01)", or any function (parameters, lr=...) that returns an optimizer.
        accumulate: Batches per step of the optimizer. The last step of an epoch may have fewer.
        dtype: "float32", or "bfloat16" to compute the forward passes of training in that type (autocast).
        drop_last: Whether an epoch omits a short last batch. A client with less than one batch trains it.
        batch_norm: "average" to average the running statistics of batch norms with the model, "local" to keep them on
            each client, or "forbid" to refuse models with batch norms.
        optimizer_state: "reset" to begin every round with a new optimizer, or "keep" to continue with the state, such
            as the momentum, that the client had after its last report.
        clients_per_round: Number of clients selected per round.
        rounds: Number of rounds. In a comparison, every method has the time that FedAvg+1T needs for them.
        eval_every: Number of rounds between evaluations.
        clip_norm: Largest norm of a step's gradient. None: no clipping.
        prox_mu: Weight of the proximal term, for methods that have one.
        sample_selection_deadline: Deadline of the method `sampleselection`, as a multiple of T.
        loss: "cross_entropy", or a function of (outputs, labels) that returns one value per sample.
        metric: One metric, or several with the main one first, which targets and scores use: a name (accuracy, f1,
            auroc, top5, perplexity, loss, mae, mse, rmse, r2), a `fedbalancer.Metric`, a `torchmetrics.Metric`, or a
            function of (outputs, labels) that returns the number of correct answers and their possible number.
            Default: accuracy, or the loss if the labels are floats.
        latency: Time of a batch on the devices. The name of a task of the paper: this task stands for its published
            model. A mapping of slow, mid and fast to (mean, standard deviation) in milliseconds: measured with this
            task's model. "flops", the default: estimated from the model's FLOPs.
        latency_batch_size: Samples per batch to which `latency` belongs; other batch sizes are scaled. Default: the
            published batch size for a task of the paper, and `batch_size` for a mapping.
        devices: Devices on which runs of this task are simulated, unless a run names others; see `RunOptions`.
        model_bytes: Size of the model on the network. Default: 4 bytes per trained parameter.
        classes: Number of classes. None if the labels are not classes.
        client_tests: Test data (features, labels) of clients that have their own, by client id. The model is evaluated
            on each at every evaluation, and on these instead of the training data for fairness. Default: none.
        notes: Facts about the data, for summaries.
        forward: Function of (model, features) that returns the outputs, for a model that is not called as
            `model(features)`, `model(**features)` for a dictionary or `model(*features)` for a tuple.
        collate_fn: Converts items of a data set: called with a list of one item, it returns a batch of one.
    """

    clients: Mapping[str, Any]
    test: Any
    model: Callable[[], Any]
    name: str = "custom"
    variant: str = ""
    batch_size: int = 10
    epochs: int = 5
    learning_rate: float | RateFunction = 0.01
    schedule: Schedule | str | Mapping[str, Any] | None = None
    optimizer: str | Mapping[str, Any] | Callable[..., Any] = SGD
    accumulate: int = 1
    dtype: str = "float32"
    drop_last: bool = False
    batch_norm: str = "average"
    optimizer_state: str = "reset"
    clients_per_round: int = 10
    rounds: int = 50
    eval_every: int = 5
    clip_norm: float | None = None
    prox_mu: float = 0.0
    sample_selection_deadline: int = 1
    loss: str | Callable[[Any, Any], Any] = "cross_entropy"
    metric: Metrics | None = None
    latency: str | Mapping[str, tuple[float, float]] | None = None
    latency_batch_size: int | None = None
    devices: Any = None
    model_bytes: int | None = None
    classes: int | None = None
    client_tests: Mapping[str, Samples] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    forward: Callable[[Any, Any], Any] | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None

    def __post_init__(self) -> None:
        if not (hasattr(self.clients, "keys") or isinstance(self.clients, MadeOnDemand)):
            kind = type(self.clients).__name__
            raise BadData(f"clients must be a mapping of ids to samples, such as {{'ann': (x, y)}}, not {kind}")
        if not self.clients:
            raise BadData(f"task {self.name!r} has no clients; give at least one as an id and (features, labels)")
        for client in self.clients:
            if not isinstance(client, str):
                raise BadData(
                    f"client {client!r} is named by {type(client).__name__}; ids are text: use {str(client)!r}"
                )
        if self.model_bytes is not None and not (isinstance(self.model_bytes, int) and self.model_bytes >= 1):
            raise BadData(f"model_bytes = {self.model_bytes!r} must be a whole number of bytes, at least 1")
        read_metrics(self.metric)
        self._check_latency_batch_size()
        for name in ("forward", "collate_fn"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise BadData(f"{name} must be a function, not {type(getattr(self, name)).__name__}")
        read_schedule(self.schedule)
        optimizer_text(self.optimizer)
        parts: dict[str, Any] = {}
        if isinstance(self.clients, MadeOnDemand):
            for client, size in self.clients.sizes.items():
                if size < 1:
                    raise BadData(f"client {client!r} has no samples; leave it out or give it at least one")
        else:
            parts = {f"client {client!r}": samples for client, samples in self.clients.items()}
        parts[TEST] = self.test
        arrays = {where: check_samples(part, where, self.classes, self.collate_fn) for where, part in parts.items()}
        arrays = match_all(arrays)
        check_alike(arrays)
        self._keep_arrays(parts, arrays)
        self._check_client_tests()

    def _check_client_tests(self) -> None:
        """Check that test data of clients belong to clients and are like the test data of the task."""
        for client in self.client_tests:
            if client not in self.clients:
                raise BadData(f"client_tests names {client!r}, which is not a client of task {self.name!r}")
        if not self.client_tests or isinstance(self.client_tests, MadeOnDemand):
            return
        parts = {f"the test data of client {client!r}": samples for client, samples in self.client_tests.items()}
        arrays = {where: check_samples(part, where, self.classes, self.collate_fn) for where, part in parts.items()}
        arrays = match_all({TEST: self.test, **arrays})
        check_alike(arrays)
        del arrays[TEST]
        object.__setattr__(self, "client_tests", dict(zip(self.client_tests, arrays.values(), strict=True)))

    def _check_latency_batch_size(self) -> None:
        size = self.latency_batch_size
        if size is None:
            return
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise BadData(f"latency_batch_size = {size!r} must be a whole number of samples, at least 1")
        if self.latency is None or self.latency == ESTIMATED:
            raise BadData(f"latency_batch_size = {size} needs a latency that was measured with batches of this size")

    def _keep_arrays(self, parts: Mapping[str, Any], arrays: dict[str, Samples]) -> None:
        """Replace lists, tensors and data sets by arrays. Clients of a lazy mapping are counted and stay lazy."""
        if not isinstance(self.clients, MadeOnDemand | dict | MappingProxyType):
            sizes = [len(labels) for where, (_, labels) in arrays.items() if where != TEST]
            object.__setattr__(
                self, "clients", CountedClients(self.clients, dict(zip(self.clients, sizes, strict=True)))
            )
            object.__setattr__(self, "test", arrays[TEST])
            return
        if all(is_plain(part) for part in parts.values()):
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

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics of an evaluation, the main one first."""
        return read_metrics(self.metric, _are_classes(self.test[1]))

    def samples(self, client: str) -> Samples:
        """Return the features and labels of a client."""
        samples = self.clients[client]
        return samples if is_plain(samples) else to_samples(samples, f"client {client!r}", self.collate_fn)

    def labels(self, client: str) -> Any:
        """Return the labels of a client's samples. A lazy mapping may have a faster function `labels` for this."""
        labels = getattr(self.clients, "labels", None)
        return labels(client) if callable(labels) else self.samples(client)[1]

    def settings(self) -> dict[str, Any]:
        """Return the values that a configuration or `--set` may override."""
        names = (
            "batch_size", "epochs", "learning_rate", "schedule", "optimizer", "accumulate", "dtype", "drop_last",
            "batch_norm", "optimizer_state", "clients_per_round", "rounds", "eval_every", "clip_norm", "prox_mu",
            "sample_selection_deadline",
        )  # fmt: skip
        values = {name: getattr(self, name) for name in names}
        schedule = read_schedule(self.schedule)
        values |= {"optimizer": optimizer_text(self.optimizer), "schedule": None if schedule is None else str(schedule)}
        if self.latency is not None:
            values["latency"] = self.latency if isinstance(self.latency, str) else CUSTOM
        return values


def is_plain(samples: Any) -> TypeGuard[tuple[NDArray[Any], NDArray[Any]]]:
    """Whether these are (features, labels) of two arrays."""
    return (
        isinstance(samples, tuple)
        and len(samples) == 2
        and all(isinstance(part, np.ndarray) and part.dtype != object for part in samples)
    )


def _are_classes(labels: Any) -> bool:
    """Whether labels can be classes: they are neither absent nor floats."""
    values = labels.values if isinstance(labels, Ragged) else as_array(labels)
    return values.size > 0 and values.dtype.kind != "f"


def check_samples(
    samples: Any, where: str, classes: int | None, collate_fn: Callable[[list[Any]], Any] | None = None
) -> Samples:
    """Return samples as arrays.

    Args:
        samples: Features and labels, or a data set.
        where: Whose samples these are, for the message.
        classes: Number of classes. None if the labels are not classes.
        collate_fn: Converts items of a data set.

    Raises:
        BadData: If the samples cannot be trained on; the message names the place and the index.
    """
    features, labels = samples if is_plain(samples) else to_samples(samples, where, collate_fn)
    if not all(np.ndim(part) for part in (*columns_of(features).values(), labels)):
        raise BadData(f"{where} must have one row of features and one label per sample, not single values")
    rows = count_rows(features)
    if rows != len(labels):
        raise BadData(f"{where} has {rows} features but {len(labels)} labels")
    if len(labels) == 0:
        raise BadData(f"{where} has no samples; leave it out or give it at least one")
    check_part(features, where, "feature")
    wholes = np.asarray(labels)
    if wholes.dtype.kind in "iu" and wholes.size and (wholes.min() < 0 or classes is not None):
        by_sample = wholes.reshape(len(wholes), -1)
        wrong = (by_sample < 0) & (by_sample != IGNORED)
        if classes is not None:
            wrong |= by_sample >= classes
        if wrong.any():
            sample, place = np.argwhere(wrong)[0]
            top = f"0 to {classes - 1}" if classes is not None else "0 or more"
            label = by_sample[sample, place]
            raise BadData(f"{where} has label {label} in sample {sample}; labels must be {top}, or {IGNORED} (ignored)")
    return features, labels


def match_all(parts: dict[str, Samples]) -> dict[str, Samples]:
    """Return all parts with ragged columns where any of them has one."""
    for place in (0, 1):
        columns = [column for samples in parts.values() for column in columns_of(samples[place]).items()]
        ragged = {name: column for name, column in columns if isinstance(column, Ragged)}
        if ragged:
            like = ragged.get("", ragged)
            parts = {where: _match(samples, place, like) for where, samples in parts.items()}
    return parts


def _match(samples: Samples, place: int, like: Any) -> Samples:
    matched = match_ragged(samples[place], like)
    return (matched, samples[1]) if place == 0 else (samples[0], matched)


def check_alike(parts: Mapping[str, Samples]) -> None:
    """Check that all parts have the same shapes and types, because a compiled kernel is made for one kind of samples.

    Args:
        parts: Samples by the place they come from.

    Raises:
        BadData: If they differ.
    """
    check_shapes(parts)
    for noun, place, floats in (("features", 0, ("f", "b", "u1")), ("labels", 1, ("f",))):
        types = {where: _trains_as(part[place], where, noun, floats) for where, part in parts.items()}
        _check_same({where: f"{noun} that train as {name}" for where, name in types.items()})


def check_shapes(parts: Mapping[str, Samples]) -> None:
    """Check that features and labels have the same names and shapes in all parts."""
    _check_names({where: features for where, (features, _) in parts.items()})
    _check_same({where: f"samples of shape {_shape(features)}" for where, (features, _) in parts.items()})
    _check_same({where: f"labels of shape {_shape(labels)}" for where, (_, labels) in parts.items()})


def _check_names(parts: Mapping[str, Any]) -> None:
    """Check that dictionaries of features have the same names."""
    first = next(iter(parts))
    for where, features in parts.items():
        if not (isinstance(features, Mapping) and isinstance(parts[first], Mapping)):
            continue
        for has, lacks in ((first, where), (where, first)):
            missing = [name for name in parts[has] if name not in parts[lacks]]
            if missing:
                raise BadData(
                    f"{lacks} has no feature {missing[0]!r}, but {has} has; all of a task must be of one kind"
                )


def _shape(part: Any) -> str:
    """Return the shape of one row as text."""
    if isinstance(part, np.ndarray):
        return str(part.shape[1:])
    return describe(
        _sorted(part), lambda column: str(tuple(column.shape if hasattr(column, "shape") else np.shape(column))[1:])
    )


def _sorted(part: Any) -> Any:
    """Return a dictionary of features in the order of its names."""
    return dict(sorted(part.items())) if isinstance(part, Mapping) else part


def _check_same(parts: Mapping[str, str]) -> None:
    first = next(iter(parts))
    for where, has in parts.items():
        if has != parts[first]:
            raise BadData(f"{where} has {has}, but {first} has {parts[first]}; all of a task must be of one kind")


def _trains_as(part: Any, where: str, noun: str, floats: tuple[str, ...]) -> str:
    """Return the type in which values reach a model: float32 for numpy codes in `floats`, int64 for other numbers."""
    if not isinstance(part, np.ndarray):
        return describe(_sorted(part), lambda column: _type_name(column, where, noun, floats))
    return _type_name(part, where, noun, floats)


def _type_name(column: Any, where: str, noun: str, floats: tuple[str, ...]) -> str:
    values = (
        column if isinstance(column, np.ndarray) else column.values if isinstance(column, Ragged) else as_array(column)
    )
    if values.dtype.kind not in "fiub":
        example = f", such as {str(values.flat[0])[:40]!r}" if values.size else ""
        advice = "; number the classes 0, 1, 2, ..., or use Task.from_arrays, which does" if noun == "labels" else ""
        raise BadData(f"{where} has {noun} of type {values.dtype}{example}; they must be numbers{advice}")
    return "float32" if values.dtype.str[1:].startswith(floats) else "int64"


def check_client(samples: Any, client: str, test: Samples, classes: int | None, collate_fn: Any = None) -> Samples:
    """Return a client's samples as arrays, after checking that they are like the test data.

    Args:
        samples: Features and labels, or a data set.
        client: The client's id.
        test: The test data.
        classes: Number of classes; None if labels are not classes.
        collate_fn: Converts items of a data set.

    Raises:
        BadData: If shape, type or labels differ.
    """
    where = f"client {client!r}"
    if not (is_plain(samples) and is_plain(test)):
        features, labels = to_samples(samples, where, collate_fn)
        samples = match_ragged(features, test[0]), match_ragged(labels, test[1])
        if check_part(samples[0], where, "feature") != len(samples[1]):
            raise BadData(f"{where} has {count_rows(samples[0])} features but {len(samples[1])} labels")
    check_alike({TEST: test, where: samples})
    if classes is not None:
        check_labels(samples[1], where, classes)
    checked: Samples = samples
    return checked


def check_labels(labels: Any, where: str, classes: int) -> None:
    """Check that the labels are classes of the model.

    Args:
        labels: The labels.
        where: Whose labels they are, for the message.
        classes: Number of the model's outputs.

    Raises:
        BadData: If they are not; the message names the sample.
    """
    array = labels if isinstance(labels, np.ndarray) else np.asarray(labels)
    if array.dtype.kind not in "iub":
        got = f"{array.dtype} of shape {array.shape}"
        raise BadData(f"{where}: the cross-entropy needs one whole number per sample as labels, not {got}")
    bad = np.argwhere(array >= classes)
    if len(bad):
        place = tuple(bad[0])
        raise BadData(
            f"{where} has label {array[place]} in sample {bad[0][0]}, but the model has {classes} outputs; "
            f"labels must be 0 to {classes - 1}, or the model needs {array.max() + 1} outputs"
        )
