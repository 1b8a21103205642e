"""Converts what users have (arrays, tensors, data sets of torch and Hugging Face) to features and labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedbalancer.core.errors import BadData, UnknownName
from fedbalancer.core.samples import (
    IGNORED,
    Ragged,
    as_array,
    as_column,
    as_features,
    as_labels,
    count_rows,
    map_columns,
)

LABELS = ("label", "labels")
"""Columns of a data set that hold the labels unless specified."""

Collate = Callable[[list[Any]], Any]
"""Joins a list of items to a batch, as the `collate_fn` of a torch data loader."""


def to_samples(data: Any, where: str, collate_fn: Collate | None = None) -> tuple[Any, Any]:
    """Convert any supported form of samples to features and labels.

    Args:
        data: A pair (features, labels), where labels may be None, or a map-style data set.
        where: Whose samples these are, for errors.
        collate_fn: Joins items of a data set.

    Raises:
        BadData: If the form is not supported.
    """
    if is_dataset(data):
        features, labels = read_dataset(data, where, collate_fn)
    else:
        try:
            features, labels = data
        except (TypeError, ValueError) as error:
            raise BadData(_describe_forms(where, type(data).__name__)) from error
    try:
        features = as_features(features)
        return features, as_labels(labels, count_rows(features))
    except (TypeError, ValueError, StopIteration) as error:
        raise BadData(_describe_forms(where, f"{type(features).__name__} and {type(labels).__name__}")) from error
    except BadData as error:
        raise BadData(f"{where}: {error}") from error


def _describe_forms(where: str, got: str) -> str:
    return f"{where} must be a pair (features, labels) of arrays or a data set with a length, not {got}"


def is_dataset(data: Any) -> bool:
    """Whether this is a map-style data set: it has a length and items by number."""
    if isinstance(data, tuple | list | str | Mapping | np.ndarray | Ragged) or hasattr(data, "detach"):
        return False
    return hasattr(data, "__getitem__") and hasattr(data, "__len__")


def read_dataset(
    dataset: Any,
    where: str = "the data set",
    collate_fn: Collate | None = None,
    *,
    features: str | Sequence[str] | None = None,
    label: str | None = None,
    ragged: Mapping[str, bool] | None = None,
    padding: float | Mapping[str, float] = 0,
    mask: str | None = None,
) -> tuple[Any, Any]:
    """Read all items of a map-style data set once.

    An item is (features, label), a tuple whose last value is the label, a dictionary, or features alone. In a
    dictionary the label is `label` or `labels`, unless specified, and all other values are features. Random transforms
    are drawn once, when a client's samples are read.

    Args:
        dataset: The data set.
        where: Whose samples these are, for errors.
        collate_fn: Called with a list of one item; returns a batch of one.
        features: Columns of features. A single name gives one input instead of a dictionary.
        label: Column of labels.
        ragged: Whether a column has rows of different lengths. Default: from the rows.
        padding: Value that fills shorter rows, for all columns or by column.
        mask: Name of the mask of padded features.

    Returns:
        Features and labels.

    Raises:
        BadData: If the data set cannot be read.
        UnknownName: If a column does not exist.
    """
    if not len(dataset):
        raise BadData(f"{where} has no samples; leave it out or give it at least one")
    if collate_fn is None and _is_hugging_face(dataset):
        parts = split_columns(_read_columns(dataset, features, label), where, features, label)
    else:
        items = [_collate(collate_fn, dataset[row], where) for row in range(len(dataset))]
        parts = split_columns(_join(items, where), where, features, label)
    labels = parts[1]
    if isinstance(labels, Ragged):
        labels = Ragged.join(labels.values, labels.lengths, IGNORED)
    return _set_padding(parts[0], ragged or {}, padding, mask), labels


def _is_hugging_face(dataset: Any) -> bool:
    return hasattr(dataset, "with_format") and hasattr(dataset, "column_names")


def _read_columns(dataset: Any, features: str | Sequence[str] | None, label: str | None) -> dict[str, Any]:
    """Read the columns of a Hugging Face data set. A format or transform of the user's is kept."""
    known = dataset.column_names
    wanted = [features] if isinstance(features, str) else list(features) if features is not None else None
    for name in (*(wanted or ()), *((label,) if label is not None else ())):
        if name not in known and (dataset.format or {}).get("type") != "custom":
            raise UnknownName("column of the data set", name, known)
    if (dataset.format or {}).get("type") is None:
        if wanted is not None:
            dataset = dataset.select_columns(list(dict.fromkeys([*wanted, *((label,) if label else ())])))
        dataset = dataset.with_format("numpy")
    return {name: _to_column(values) for name, values in dataset[:].items()}


def _to_column(values: Any) -> Any:
    if isinstance(values, list | np.ndarray) and len(values) and not isinstance(values[0], str | bytes):
        values = values if isinstance(values, np.ndarray) and values.dtype != object else [as_array(v) for v in values]
    return as_column(values)


def _collate(collate_fn: Collate | None, item: Any, where: str) -> Any:
    """Return one item; a `collate_fn` makes a batch of one, whose first row it is."""
    if collate_fn is None:
        return item
    batch = collate_fn([item])

    def first(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: first(part) for name, part in value.items()}
        if isinstance(value, tuple):
            return tuple(first(part) for part in value)
        if value is None:
            return None
        if getattr(value, "shape", None) == () or not hasattr(value, "__len__") or len(value) != 1:
            raise BadData(f"{where}: collate_fn([item]) must return a batch of one row, not {type(value).__name__}")
        return value[0]

    return first(tuple(batch) if isinstance(batch, list) else batch)


def _join(items: list[Any], where: str) -> Any:
    """Join the values of all items to columns."""
    first = items[0]
    try:
        if isinstance(first, Mapping):
            return {str(name): _join([item[name] for item in items], where) for name in first}
        if isinstance(first, tuple | list) and not (first and np.isscalar(first[0])):
            return tuple(_join(list(values), where) for values in zip(*items, strict=True))
        if isinstance(first, tuple) and len(first) == 2:  # one number and its label
            return tuple(_join(list(values), where) for values in zip(*items, strict=True))
        if first is None:
            return None
        return as_column([as_array(item) for item in items])
    except (KeyError, TypeError, ValueError) as error:
        raise BadData(f"{where}: its items differ in form: {' '.join(str(error).split())}") from error


def split_columns(
    values: Any, where: str, features: str | Sequence[str] | None = None, label: str | None = None
) -> tuple[Any, Any]:
    """Separate joined items into features and labels.

    Args:
        values: A mapping of columns, a tuple of columns whose last one is the label, or features alone.
        where: Whose samples these are, for errors.
        features: Columns of features. Default: all but the label.
        label: Column of labels. Default: `label` or `labels`, if there is one.
    """
    if not isinstance(values, Mapping):
        if features is not None or label is not None:
            raise BadData(f"{where} has items without names; features and label name columns of dictionaries")
        if isinstance(values, tuple):
            return (values[0] if len(values) <= 2 else values[:-1]), values[-1] if len(values) > 1 else None
        return values, None
    for name in (*((features,) if isinstance(features, str) else features or ()), *((label,) if label else ())):
        if name not in values:
            raise UnknownName("column of the data set", name, values)
    label = label if label is not None else next((name for name in LABELS if name in values), None)
    labels = values[label] if label is not None else None
    if isinstance(features, str):
        return values[features], labels
    if features is not None:
        return {name: values[name] for name in features}, labels
    rest = {name: column for name, column in values.items() if name != label}
    return (next(iter(rest.values())) if len(rest) == 1 else rest), labels


def _set_padding(
    features: Any, ragged: Mapping[str, bool], padding: float | Mapping[str, float], mask: str | None
) -> Any:
    """Set the padding of ragged columns. Rows that happen to have equal lengths become ragged where stated."""
    if isinstance(features, Mapping):
        values = padding if isinstance(padding, Mapping) else dict.fromkeys(features, padding)
        padded = {name: _pad(part, ragged.get(name), values.get(name, 0), None) for name, part in features.items()}
        first = next((part for part in padded.values() if isinstance(part, Ragged)), None)
        if first is not None:
            first.mask = mask
        return padded
    value = next(iter(padding.values()), 0) if isinstance(padding, Mapping) else padding
    return map_columns(features, lambda column: _pad(column, next(iter(ragged.values()), None), value, mask))


def _pad(column: Any, is_ragged: bool | None, padding: float, mask: str | None) -> Any:
    if isinstance(column, Ragged):
        return Ragged.join(column.values, column.lengths, padding, mask)
    return Ragged(list(column), padding, mask) if is_ragged and np.ndim(column) > 1 else column
