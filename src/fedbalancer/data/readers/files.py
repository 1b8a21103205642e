"""Untrusted `.npz` files, and files of JSON lines."""

from __future__ import annotations

import json
import lzma
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData


def load_npz(path: Path, names: Iterable[str] | None = None) -> dict[str, NDArray[Any]]:
    """Read arrays of an `.npz` file, without unpickling.

    Args:
        path: The file.
        names: Names of the arrays. None: all.

    Raises:
        BadData: If the file is missing or damaged, or lacks an array.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in (file.files if names is None else names)}
    except FileNotFoundError as error:
        raise BadData(f"the file {path} does not exist") from error
    except KeyError as error:
        raise BadData(f"{path} lacks an array: {error.args[0]}") from error
    except (ValueError, OSError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        reason = " ".join(str(error).split())
        raise BadData(f"{path} is damaged or not an .npz file of plain arrays: {reason}") from error


def read_npz(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[Any]]:
    """Read arrays with one row per sample.

    Args:
        path: The file.
        shapes: Required shape of a row, by the name of the array.

    Raises:
        BadData: If the file cannot be read, a shape is wrong, or there are no samples.
    """
    arrays = load_npz(path, shapes)
    rows = len(next(iter(arrays.values())))
    for name, shape in shapes.items():
        if arrays[name].shape != (rows, *shape):
            raise BadData(f"{path}: array {name!r} has shape {arrays[name].shape}; it must be {(rows, *shape)}")
    if not rows:
        raise BadData(f"{path} has no samples")
    return arrays


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of an xz-compressed file with one JSON object per line.

    Raises:
        BadData: If the file is damaged.
    """
    number = 1
    try:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise ValueError(f"a {type(record).__name__} instead of an object")
                yield record
                number += 1
    except (ValueError, EOFError, lzma.LZMAError) as error:
        reason = " ".join(str(error).split())
        raise BadData(f"{path}, line {number}: not complete JSON ({reason}); get the file again") from error
