"""Parts of samples: single arrays, sequences of different lengths, and dictionaries or tuples of these.

A part of the samples (features or labels) has one row per sample. `Ragged` holds rows of different lengths and pads
them per batch. A dictionary holds the named inputs of a model, a tuple its positional inputs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbalancer.core.errors import BadData

IGNORED = -100
"""Label of a position that loss and accuracy ignore, as in torch and transformers."""


class Ragged:
    """Rows of different lengths, such as sentences. A batch is padded to its own longest row.

    Args:
        rows: One array or list per sample. They may differ in their first axis only.
        padding: Value that fills the shorter rows of a batch.
        mask: Name of a mask that is passed to the model with the batch: 1 for values, 0 for padding. It requires
            features that are a dictionary. Default: no mask.

    Raises:
        BadData: If the rows cannot be joined.

    >>> words = Ragged([[5, 6, 7], [8]])
    >>> len(words), words.lengths.tolist(), words[1:].pad().tolist()
    (2, [3, 1], [[8]])
    >>> words.pad().tolist()
    [[5, 6, 7], [8, 0, 0]]
    """

    def __init__(self, rows: Sequence[ArrayLike], padding: float = 0, mask: str | None = None) -> None:
        arrays = [as_array(row) for row in rows]
        if not arrays:
            raise BadData("ragged samples need at least one row")
        for number, array in enumerate(arrays):
            if not array.ndim or array.shape[1:] != arrays[0].shape[1:]:
                first = arrays[0].shape
                raise BadData(f"row {number} has shape {array.shape} and row 0 {first}; only the first axis may differ")
        kinds = [array.dtype for array in arrays if len(array)] or [arrays[0].dtype]
        values = np.concatenate(arrays).astype(np.result_type(*kinds), copy=False)
        self._set(values, np.array([len(array) for array in arrays], dtype=np.int64), padding, mask)

    def _set(self, values: NDArray[Any], lengths: NDArray[np.int64], padding: float, mask: str | None) -> None:
        self.values, self.lengths, self.padding, self.mask = values, lengths, padding, mask
        self._ends = np.cumsum(lengths)

    @classmethod
    def join(
        cls, values: NDArray[Any], lengths: NDArray[np.int64], padding: float = 0, mask: str | None = None
    ) -> Ragged:
        """Make rows from one array that holds them one after another.

        Args:
            values: The values of all rows.
            lengths: Length of every row.
            padding: Value that fills shorter rows.
            mask: Name of the mask.
        """
        made = cls.__new__(cls)
        made._set(values, lengths, padding, mask)
        return made

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, rows: Any) -> Ragged:
        """Return some rows, by a slice or an array of numbers."""
        chosen = np.arange(len(self))[rows]
        if not isinstance(chosen, np.ndarray):
            raise TypeError("rows of ragged samples are chosen by a slice or an array")
        lengths = self.lengths[chosen]
        starts = (self._ends - self.lengths)[chosen]
        offsets = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return Ragged.join(self.values[np.repeat(starts, lengths) + offsets], lengths, self.padding, self.mask)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return iter(np.split(self.values, self._ends[:-1]))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self.pad().astype(dtype) if dtype is not None else self.pad()

    def __repr__(self) -> str:
        return f"Ragged({len(self)} rows of {self.lengths.min()} to {self.lengths.max()}, {self.values.dtype})"

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        return self.values.nbytes + self.lengths.nbytes

    @property
    def shape(self) -> tuple[int | str, ...]:
        """Shape of all rows, with "any" for the axis that differs."""
        return (len(self), "any", *self.values.shape[1:])

    def astype(self, dtype: Any) -> Ragged:
        """Return the same rows in another type.

        Args:
            dtype: The type.
        """
        return Ragged.join(self.values.astype(dtype, copy=False), self.lengths, self.padding, self.mask)

    def pad(self) -> NDArray[Any]:
        """Return the rows as one array, padded to the longest row, or to 1 if all rows are empty."""
        steps = max(int(self.lengths.max(initial=0)), 1)
        padded = np.full((len(self), steps, *self.values.shape[1:]), self.padding, self.values.dtype)
        padded[self.present(steps)] = self.values
        return padded

    def present(self, steps: int) -> NDArray[np.bool_]:
        """Return which positions of the padded array hold values.

        Args:
            steps: Length of a padded row.
        """
        here: NDArray[np.bool_] = np.arange(steps) < self.lengths[:, None]
        return here


Column = NDArray[Any] | Ragged
"""One value, array or sequence per sample."""

Features = Column | Mapping[str, Column] | tuple[Column, ...]
"""The inputs of a model: one, by name, or by position."""


def as_array(values: Any) -> NDArray[Any]:
    """Return values as a NumPy array. Torch tensors may be on any device and require gradients."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype is torch.bfloat16 else values  # NumPy has no such type
    return np.asarray(values)


def as_column(values: Any, padding: float = 0) -> Column:
    """Return one part of the samples as an array, or as `Ragged` if its rows differ in length.

    Args:
        values: Array, tensor, list, or list of arrays or tensors.
        padding: Value that fills shorter rows.

    Raises:
        BadData: If the rows cannot be joined.
    """
    if isinstance(values, np.ndarray | Ragged) and not _holds_arrays(values):
        return values
    if isinstance(values, list | tuple) and values and hasattr(values[0], "detach"):
        values = [as_array(row) for row in values]
    try:
        array = as_array(values)
    except ValueError as error:
        if "inhomogeneous" not in str(error):
            raise
        return Ragged(values, padding)
    return Ragged(list(array), padding) if _holds_arrays(array) else array


def _holds_arrays(values: Any) -> bool:
    """Whether this is an array of objects that are themselves arrays or lists."""
    if not isinstance(values, np.ndarray) or values.dtype != object or values.ndim != 1 or not len(values):
        return False
    return isinstance(values[0], np.ndarray | list)


def as_features(values: Any) -> Any:
    """Return the inputs of a model as columns.

    Args:
        values: One column, a mapping of names to columns, or a tuple of arrays.
    """
    if isinstance(values, Mapping):
        return {str(name): as_column(column) for name, column in values.items()}
    if is_tuple(values):
        return tuple(as_column(column) for column in values)
    return as_column(values)


def is_tuple(values: Any) -> bool:
    """Whether this is a tuple of inputs. A tuple of numbers or lists is one input, as for NumPy."""
    return isinstance(values, tuple) and bool(values) and all(getattr(column, "shape", ()) for column in values)


def as_labels(values: Any, count: int) -> Column:
    """Return labels as a column. Absent labels (None) become an array of shape (count, 0).

    Args:
        values: The labels. None: there are none.
        count: Number of samples.
    """
    return np.empty((count, 0), dtype=np.float32) if values is None else as_column(values, IGNORED)


def columns_of(part: Any) -> dict[str, Any]:
    """Return the columns of a part by name; a single column has the name ''."""
    if isinstance(part, Mapping):
        return dict(part)
    return {str(place): column for place, column in enumerate(part)} if is_tuple(part) else {"": part}


def map_columns(part: Any, change: Callable[[Any], Any]) -> Any:
    """Return a part with a function applied to each of its columns."""
    if isinstance(part, Mapping):
        return {name: change(column) for name, column in part.items()}
    return tuple(change(column) for column in part) if is_tuple(part) else change(part)


def take(part: Any, rows: Any) -> Any:
    """Return some rows of a part.

    Args:
        part: Features or labels.
        rows: A slice or an array of numbers.

    >>> take({"x": np.arange(3), "words": Ragged([[1], [2, 3], [4]])}, slice(1, 2))
    {'x': array([1]), 'words': Ragged(1 rows of 2 to 2, int64)}
    """
    return part[rows] if isinstance(part, np.ndarray) else map_columns(part, lambda column: column[rows])


def typical_rows(part: Any, count: int) -> NDArray[np.int64]:
    """Return the first rows or, if rows differ in length, those of about the median length.

    Args:
        part: Features.
        count: Number of rows.

    >>> typical_rows(Ragged([[1, 2, 3, 4], [5], [6, 7], [8, 9, 1]]), 2)
    array([2, 3])
    """
    lengths = [column.lengths for column in columns_of(part).values() if isinstance(column, Ragged)]
    if not lengths:
        return np.arange(min(count, count_rows(part)))
    order = np.argsort(lengths[0], kind="stable")
    start = max(len(order) // 2 - count // 2, 0)
    return order[start : start + count]


def count_rows(part: Any) -> int:
    """Return the number of samples of a part, which may also hold tensors."""
    return len(next(iter(columns_of(part).values())))


def count_bytes(part: Any) -> int:
    """Return the size of a part in memory."""
    return sum(column.nbytes for column in columns_of(part).values())


def concatenate(parts: Sequence[Any]) -> Any:
    """Join the rows of several parts that have the same columns."""
    first = parts[0]
    if isinstance(first, Mapping):
        return {name: concatenate([part[name] for part in parts]) for name in first}
    if is_tuple(first):
        return tuple(concatenate(list(columns)) for columns in zip(*parts, strict=True))
    if any(isinstance(part, Ragged) for part in parts):
        return Ragged([row for part in parts for row in part], first.padding, first.mask)
    return np.concatenate(parts)


def match_ragged(part: Any, like: Any) -> Any:
    """Return a part whose columns are ragged where those of another part are.

    Lists of equal length become one array, although other clients have lists of different lengths.

    Args:
        part: The part.
        like: A part of the same task.
    """
    templates = columns_of(like)

    def match(name: str, column: Any) -> Any:
        template = templates.get(name)
        if not isinstance(template, Ragged) or isinstance(column, Ragged) or np.ndim(column) < 2:
            return column
        return Ragged(list(as_array(column)), template.padding, template.mask)

    if isinstance(part, Mapping):
        return {name: match(name, column) for name, column in part.items()}
    return tuple(match(str(at), column) for at, column in enumerate(part)) if is_tuple(part) else match("", part)


def check_part(part: Any, where: str, noun: str) -> int:
    """Check that all columns of a part have one row per sample, and finite values.

    Args:
        part: Features or labels.
        where: Whose they are, for the message.
        noun: "feature" or "label", for the message.

    Returns:
        The number of samples.

    Raises:
        BadData: If a column has another length, or a value is NaN or infinite.
    """
    columns = columns_of(part)
    if not columns:
        raise BadData(f"{where} has no {noun}s: the dictionary is empty")
    lengths = {name: len(column) for name, column in columns.items()}
    first = next(iter(lengths))
    for name, column in columns.items():
        if lengths[name] != lengths[first]:
            raise BadData(f"{where} has {lengths[name]} rows of {noun} {name!r} but {lengths[first]} of {first!r}")
        if isinstance(column, Ragged) and column.mask is not None and not isinstance(part, Mapping):
            raise BadData(f"{where}: mask = {column.mask!r} requires {noun}s that are a dictionary")
        values = column.values if isinstance(column, Ragged) else column
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            called = f" {name!r}" if name else ""
            raise BadData(f"{where} has a NaN or infinite {noun}{called} in sample {_find_infinite(column)}")
    return lengths[first]


def _find_infinite(column: Column) -> int:
    if isinstance(column, Ragged):
        place = int(np.flatnonzero(~np.isfinite(column.values).reshape(len(column.values), -1).all(axis=1))[0])
        return int(np.searchsorted(np.cumsum(column.lengths), place, side="right"))
    return int(np.flatnonzero(~np.isfinite(column.reshape(len(column), -1)).all(axis=1))[0])


def describe(part: Any, say: Callable[[Any], Any]) -> str:
    """Describe the columns of a part, as in "ids (any,), mask (any,)".

    Args:
        part: Features or labels.
        say: Describes one column.
    """
    columns = columns_of(part)
    if list(columns) == [""]:
        return str(say(columns[""]))
    return ", ".join(f"{name} {say(column)}" for name, column in columns.items())
