"""Tasks from Hugging Face data sets, partitioned by a column, by an own partition, or by flwr-datasets.

Clients are lazy: a client's rows are read and converted when it trains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.datasets import LABELS, read_dataset
from fedbalancer.core.errors import BadData, BadSetting, MissingData, UnknownName
from fedbalancer.core.samples import IGNORED, Ragged, concatenate, map_columns
from fedbalancer.core.task import Samples
from fedbalancer.core.types import IndexArray
from fedbalancer.data.own.build import OPTIONS, add_client_tests, count_classes, number_labels
from fedbalancer.data.own.models import Model, convert_features, is_built_in, make_factory
from fedbalancer.data.own.options import (
    check_options,
    draw_test_users,
    split_notes,
    split_options,
    split_rows,
)
from fedbalancer.data.task import Task

Padding = float | Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Columns:
    """The conversion of the columns of a data set to samples.

    Args:
        features: Columns of features: one name, several names, or None for what a transform returns.
        label: Column of labels. None: there are none.
        padding: Value that fills shorter rows.
        mask: Name of the mask of padded features.
        ragged: Whether a column has lists of different lengths.
        names: Names of the classes, if labels are text.
        factory: Factory of the model, for which features are converted.
        wholes: Whether labels are classes that the data set holds as floats.
    """

    features: str | tuple[str, ...] | None
    label: str | None
    padding: Padding = 0
    mask: str | None = None
    ragged: Mapping[str, bool] | None = None
    names: tuple[str, ...] = ()
    factory: Any = None
    wholes: bool = False

    @classmethod
    def of(cls, features: str | Sequence[str] | None, label: str | None, padding: Padding, mask: str | None) -> Columns:
        """Return the columns that a user names."""
        names = features if features is None or isinstance(features, str) else tuple(features)
        return cls(names, label, padding, mask)

    def read(self, dataset: Any, where: str) -> Samples:
        """Read features and labels of a data set."""
        features, labels = read_dataset(
            dataset, where, features=self.features, label=self.label, ragged=self.ragged, padding=self.padding,
            mask=self.mask,
        )  # fmt: skip
        if self.factory is not None:
            features = map_columns(features, lambda column: convert_features(self.factory, column))
        return features, None if labels is None else self.number(labels, where)

    def number(self, labels: Any, where: str) -> Any:
        """Convert labels to class numbers, where they are text."""
        if self.wholes and not isinstance(labels, Ragged):
            return np.asarray(labels).astype(np.int64)
        if not self.names:
            return labels
        texts, names = np.asarray(labels).astype(str), np.array(self.names)
        at = np.searchsorted(names, texts).clip(max=len(names) - 1)
        odd = np.flatnonzero(names[at] != texts)
        if len(odd):
            raise BadData(f"{where} has label {str(texts[odd[0]])!r} in sample {odd[0]}, which no other data have")
        return at


class Parts(Protocol):
    """The rows of every client, as data sets."""

    def __getitem__(self, client: str) -> Any:
        """Return the data set of a client."""


@dataclass(frozen=True, eq=False)
class RowParts:
    """Clients by the rows of one data set.

    Args:
        dataset: The data set.
        rows: Rows of every client.
    """

    dataset: Any
    rows: Mapping[str, IndexArray]

    def __getitem__(self, client: str) -> Any:
        return self.dataset.select(self.rows[client])


@dataclass(frozen=True, eq=False)
class PartitionerParts:
    """Clients by the partitions of a partitioner of flwr-datasets.

    Args:
        partitioner: The partitioner, with its data set.
        numbers: Number of every client's partition.
    """

    partitioner: Any
    numbers: Mapping[str, int]

    def __getitem__(self, client: str) -> Any:
        return self.partitioner.load_partition(self.numbers[client])


@dataclass(frozen=True, eq=False)
class DatasetClients(Mapping[str, Samples]):
    """Clients whose samples are read from a data set on access.

    Args:
        parts: The data set of every client.
        columns: How its columns become samples.
        sizes: Number of samples per client.
    """

    parts: Parts
    columns: Columns
    sizes: Mapping[str, int]

    def __getitem__(self, client: str) -> Samples:
        return self.columns.read(self.parts[client], f"client {client!r}")

    def labels(self, client: str) -> Any:
        """Return the labels of a client, without reading its features."""
        column, part = self.columns, self.parts[client]
        if column.label is None or column.label not in part.column_names or is_transformed(part):
            labels = self[client][1]
            return labels if labels is not None else np.empty((self.sizes[client], 0), dtype=np.float32)
        labels = read_dataset(part.select_columns([column.label]), features=column.label, label=column.label)[1]
        return column.number(labels, f"client {client!r}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)


def is_transformed(dataset: Any) -> bool:
    """Whether a user's transform makes the items of a data set."""
    return (dataset.format or {}).get("type") == "custom"


def from_huggingface(
    dataset: Any,
    *,
    columns: Columns,
    model: Model,
    test: Any,
    split: str,
    subset: str | None,
    partition_by: str | None,
    classes: int | None,
    **options: Any,
) -> Task:
    """Build a task from a Hugging Face data set. See `Task.from_huggingface`."""
    of_split, settings = split_options(options)
    where, train, test = _load_splits(dataset, split, subset, test)
    check_options(of_split, partition_by is not None, test is not None)
    columns = _choose_columns(train, columns, partition_by)
    labels = _read_labels(train, columns)
    users = None
    if partition_by is not None:
        _check_column(train, partition_by)
        users = np.asarray(train.with_format(None)[partition_by][:], dtype=object)
    by_sample = labels if labels is not None and labels.ndim == 1 else np.zeros(len(train), dtype=np.int64)
    if by_sample is not labels and of_split.get("partition") in ("dirichlet", "shards"):
        raise BadSetting(f"partition = {of_split['partition']!r} needs one label per sample; use iid or partition_by")
    rows = split_rows(by_sample, users, of_split, test is not None, where)
    test_part = train.select(rows.test) if rows.test is not None else test
    sizes = {client: len(chosen) for client, chosen in rows.clients.items()}
    notes = {"source": where, **split_notes(of_split, rows.held_out, users is not None, rows.test is None)}
    settings.setdefault("name", Path(where).name if isinstance(dataset, str | Path) else "custom")
    parts = RowParts(train, rows.clients)
    task = _assemble(parts, sizes, train, [test_part], columns, model, classes, settings, notes)
    return add_client_tests(task, of_split)


def from_flower_datasets(
    data: Any,
    *,
    columns: Columns,
    model: Model,
    test: Any,
    split: str | None,
    classes: int | None,
    **options: Any,
) -> Task:
    """Build a task from partitions of flwr-datasets. See `Task.from_flower_datasets`."""
    of_split, settings = split_options(options, OPTIONS)
    partitioner, test = _find_partitioner(data, split, test)
    check_options(of_split, has_users=True, has_test=test is not None)
    dataset = partitioner.dataset
    natural = getattr(partitioner, "_partition_by", None)  # the column of users, which is no feature
    columns = _choose_columns(dataset, columns, natural)
    names = _name_partitions(partitioner)
    parts = PartitionerParts(partitioner, names)
    counted = {client: len(_check_partition(parts[client], columns, client)) for client in names}
    sizes = {client: size for client, size in counted.items() if size}
    where = f"the partitions of {type(partitioner).__name__}"
    held_out = () if test is not None else draw_test_users(list(sizes), of_split, where)
    tests = [test] if test is not None else [parts[client] for client in held_out]
    sizes = {client: size for client, size in sizes.items() if client not in set(held_out)}
    notes = {"source": where, **split_notes(of_split, held_out, has_users=True, has_test=test is not None)}
    notes["clients"] = f"partitioned by {type(partitioner).__name__}"
    if len(counted) > len(sizes) + len(held_out):
        notes["left_out"] = [client for client, size in counted.items() if not size]
    task = _assemble(parts, sizes, dataset, tests, columns, model, classes, settings, notes)
    return add_client_tests(task, of_split)


def _assemble(
    parts: Parts,
    sizes: Mapping[str, int],
    dataset: Any,
    tests: Sequence[Any],
    columns: Columns,
    model: Model,
    classes: int | None,
    settings: dict[str, Any],
    notes: dict[str, Any],
) -> Task:
    """Build the task: number the labels, make the model, and read the test data."""
    columns, count, names = _find_classes(dataset, tests, columns, classes, callable(settings.get("loss")))
    if isinstance(model, str | Mapping):
        everything = [columns.read(dataset, "the data set")[0]]
        if is_built_in(model) and not isinstance(everything[0], np.ndarray):
            raise BadSetting("a model by name takes one array of features; give a function that returns the model")
        model = make_factory(model, everything, count)
        columns = replace(columns, factory=model)
    clients = DatasetClients(parts, columns, sizes)
    read = [columns.read(part, "the test data") for part in tests]
    features = concatenate([part[0] for part in read])
    labels = None if columns.label is None and read[0][1] is None else concatenate([part[1] for part in read])
    settings = {"clients_per_round": min(10, len(sizes)), **settings}
    notes = {**notes, **({"labels": names} if names else {})}
    return Task(clients, (features, labels), make_factory(model, [], count), classes=count, notes=notes, **settings)


def _find_classes(
    dataset: Any, tests: Sequence[Any], columns: Columns, classes: int | None, keep_floats: bool
) -> tuple[Columns, int | None, list[str]]:
    """Return the columns with the names of the classes, the number of classes, and names for summaries."""
    labels = _read_labels(dataset, columns)
    if labels is None:
        return columns, classes, []
    known = getattr(dataset.features.get(columns.label), "names", None)  # of a ClassLabel
    if known is not None:
        return columns, classes if classes is not None else len(known), list(known)
    arrays = [("the data set", labels)]
    arrays += [("the test data", array) for part in tests if (array := _read_labels(part, columns)) is not None]
    numbered, names = number_labels(arrays, keep_floats)
    wholes = labels.dtype.kind == "f" and numbered[0].dtype.kind == "i"
    kept = [(where, array[array != IGNORED]) for (where, _), array in zip(arrays, numbered, strict=True)]
    count = count_classes([(where, array) for where, array in kept if array.size], classes) if kept else classes
    return replace(columns, names=tuple(names), wholes=wholes), count, names


def _read_labels(dataset: Any, columns: Columns) -> NDArray[Any] | None:
    """Return the label column of a data set; padded if its rows are lists, None if a transform makes it."""
    if columns.label is None or columns.label not in dataset.column_names or is_transformed(dataset):
        return None
    part = dataset.select_columns([columns.label]).with_format(None)
    return np.asarray(read_dataset(part, features=columns.label, label=columns.label)[1])


def _choose_columns(dataset: Any, columns: Columns, users: str | None) -> Columns:
    """Choose the columns that the user did not name, and find which have lists of different lengths."""
    if is_transformed(dataset):
        return columns
    features, label = columns.features, columns.label
    if label is None:
        label = next((name for name in LABELS if name in dataset.column_names), None)
    else:
        _check_column(dataset, label)
    if features is None:
        rest = tuple(name for name in dataset.column_names if name not in (label, users))
        if not rest:
            raise BadData("the data set has no columns of features besides the label")
        features = rest if len(rest) > 1 or columns.mask is not None else rest[0]
    names = (features,) if isinstance(features, str) else features
    for name in names:
        _check_column(dataset, name)
        if getattr(dataset.features[name], "dtype", None) in ("string", "large_string"):
            raise BadData(f"column {name!r} holds text; convert it to numbers with dataset.map, or name other features")
    ragged = {name: _has_different_lengths(dataset, name) for name in names}
    return replace(columns, features=features, label=label, ragged=ragged)


def _check_column(dataset: Any, name: str) -> None:
    if name not in dataset.column_names:
        raise UnknownName("column of the data set", name, dataset.column_names)


def _has_different_lengths(dataset: Any, name: str) -> bool:
    """Whether the lists of a column differ in length, from the stored lengths alone."""
    arrow, compute, column = _import("pyarrow"), _import("pyarrow.compute"), dataset.data.column(name)
    if not (arrow.types.is_list(column.type) or arrow.types.is_large_list(column.type)):
        return False
    lengths = compute.min_max(compute.list_value_length(column))
    return bool(lengths["min"].as_py() != lengths["max"].as_py())


def _load_splits(dataset: Any, split: str, subset: str | None, test: Any) -> tuple[str, Any, Any]:
    """Return the name, the training data and the test data of a data set, of its name, or of a dictionary of splits."""
    datasets = _import("datasets")
    where = str(dataset) if isinstance(dataset, str | Path) else "the data set"
    if isinstance(dataset, str | Path):
        if isinstance(dataset, Path) or where[:1] in (".", "/", "~"):
            dataset = Path(dataset).expanduser()
            if not dataset.exists():
                raise BadData(f"the data set {where!r} does not exist; give a folder, or a name such as 'ag_news'")
        saved = any((Path(dataset) / file).is_file() for file in ("dataset_dict.json", "dataset_info.json"))
        if saved and subset is not None:
            raise BadSetting(f"subset = {subset!r} is for a data set that is loaded by name; {where} is a saved one")
        try:
            dataset = datasets.load_from_disk(where) if saved else datasets.load_dataset(where, subset)
        except (OSError, ValueError) as error:  # not found, no connection, or a wrong subset
            raise BadData(f"the data set {where!r} cannot be loaded: {' '.join(str(error).split())}") from error
    elif subset is not None:
        raise BadSetting(f"subset = {subset!r} is for a data set by name")
    if isinstance(dataset, Mapping):
        if test is None and "test" in dataset and split != "test":
            test = "test"
        train = _pick_split(dataset, split)
        return where, train, _pick_split(dataset, test) if isinstance(test, str) else test
    if not isinstance(dataset, datasets.Dataset):
        got = type(dataset).__name__
        raise BadData(f"the data set must be a datasets.Dataset, a DatasetDict or a name, not {got}; load it whole")
    if isinstance(test, str):
        raise BadSetting(f"test = {test!r} names a split, but the data set has none; give a datasets.Dataset")
    return where, dataset, test


def _pick_split(dataset: Mapping[str, Any], split: str) -> Any:
    if split not in dataset:
        raise UnknownName("split of the data set", split, dataset)
    return dataset[split]


def _find_partitioner(data: Any, split: str | None, test: Any) -> tuple[Any, Any]:
    """Return a partitioner with its data set, and the test data."""
    flower = _import("flwr_datasets")
    if isinstance(data, flower.FederatedDataset):
        partitioners = data.partitioners
        if split is None and len(partitioners) > 1:
            raise BadSetting(f"split must be one of {', '.join(partitioners)}, which all have a partitioner")
        split = split if split is not None else next(iter(partitioners))
        partitioner = _pick_split(partitioners, split)
        if test is None and "test" not in partitioners:
            test = "test" if "test" in data._dataset else None
        return partitioner, data.load_split(test) if isinstance(test, str) else test
    if not (isinstance(data, tuple) and len(data) == 2 and hasattr(data[1], "load_partition")):
        raise BadData(f"data must be a FederatedDataset or a pair (dataset, partitioner), not {type(data).__name__}")
    dataset, partitioner = data
    if split is not None or isinstance(test, str):
        raise BadSetting("split, and test by name, are for a FederatedDataset; with a partitioner give data sets")
    if not partitioner.is_dataset_assigned():
        partitioner.dataset = dataset
    elif partitioner.dataset is not dataset:
        raise BadData(f"the {type(partitioner).__name__} already has another data set; make a new one")
    return partitioner, test


def _name_partitions(partitioner: Any) -> dict[str, int]:
    """Return the number of every partition by its client's name: its natural id, or client-0, client-1, ..."""
    try:
        count = partitioner.num_partitions
    except (ValueError, KeyError, TypeError) as error:
        raise BadData(f"{type(partitioner).__name__} cannot partition the data: {error}") from error
    natural = getattr(partitioner, "partition_id_to_natural_id", None)
    if natural:
        return {str(natural[number]): number for number in range(count)}
    digits = len(str(count - 1))
    return {f"client-{number:0{digits}d}": number for number in range(count)}


def _check_partition(part: Any, columns: Columns, client: str) -> Any:
    """Refuse partitions that split columns instead of rows."""
    names = (columns.features,) if isinstance(columns.features, str) else columns.features or ()
    for name in (*names, *((columns.label,) if columns.label is not None else ())):
        if name not in part.column_names and not is_transformed(part):
            raise BadData(f"client {client!r} has no column {name!r}: vertical partitions are not supported")
    return part


def _import(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise MissingData(f"this needs the package {name}; install it with: pip install 'fedbalancer[data]'") from error
