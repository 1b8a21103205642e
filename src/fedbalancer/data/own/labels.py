"""Labels as they come (numbers, whole floats, text) to the class numbers that a loss wants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, BadSetting

MOST_CLASSES = 65_536
"""More are not taken from the labels: a column of ids, named by mistake, must not become a model that fills memory."""

Placed = tuple[str, NDArray[Any]]
"""Labels, and where they are from."""


def numbered(parts: Sequence[Placed], keep_floats: bool) -> tuple[list[NDArray[Any]], list[str]]:
    """Class numbers for every part, and the names of the classes where labels are text, in the order of the alphabet.

    Floats that are whole numbers become integers, unless `keep_floats` says that the loss is one for floats.
    """
    arrays = [(where, _plain(where, labels)) for where, labels in parts]
    text = [array.dtype.kind == "U" for _, array in arrays]
    if all(text):
        names = np.unique(np.concatenate([array.reshape(-1) for _, array in arrays]))
        return [np.searchsorted(names, array) for _, array in arrays], names.tolist()
    if any(text):
        odd = text.index(not text[0])
        kinds = ("text", "numbers") if text[odd] else ("numbers", "text")
        raise BadData(f"labels of {arrays[odd][0]} are {kinds[0]}, but those of {arrays[0][0]} are {kinds[1]}")
    floats = keep_floats and any(array.dtype.kind == "f" for _, array in arrays)
    return [array if floats else _whole(where, array) for where, array in arrays], []


def count_classes(parts: Sequence[Placed], given: int | None) -> int | None:
    """The number of classes: as given, or one more than the highest label; None for labels that are no classes."""
    if given is not None:
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise BadSetting(f"classes = {given!r} must be a whole number of at least 1")
        return given
    if any(labels.dtype.kind not in "iu" for _, labels in parts):
        return None
    top = max(int(labels.max()) for _, labels in parts)
    if top >= MOST_CLASSES:
        where, labels = next((where, labels) for where, labels in parts if labels.max() == top)
        raise BadData(
            f"{where} has label {top} in sample {int(labels.argmax())}; labels must be 0, 1, 2, ... or text; if there "
            "are that many classes, say so with classes"
        )
    return top + 1


def _plain(where: str, labels: NDArray[Any]) -> NDArray[Any]:
    array = np.asarray(labels)
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8")
    if array.dtype.kind == "O":
        odd = [row for row, value in enumerate(array.tolist()) if not isinstance(value, str)]
        if odd:
            raise BadData(f"{where} has label {array[odd[0]]!r} in sample {odd[0]}; labels must be numbers or text")
        return array.astype(str)
    if array.dtype.kind not in "iubfU":
        raise BadData(f"{where} has labels of type {array.dtype}; they must be whole numbers or text")
    return array


def _whole(where: str, labels: NDArray[Any]) -> NDArray[np.int64]:
    if labels.dtype.kind == "f":
        odd = np.flatnonzero(~(np.isfinite(labels) & (labels == np.floor(labels))))
        if len(odd):
            raise BadData(
                f"{where} has label {labels.flat[odd[0]]} in sample {odd[0]}; labels must be whole numbers or text, "
                "unless the task has a loss of its own"
            )
    return labels.astype(np.int64)
