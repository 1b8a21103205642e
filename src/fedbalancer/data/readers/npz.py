"""Arrays from an .npz file that is not trusted."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.errors import BadData


def read_npz(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[Any]]:
    """The named arrays, one row a sample, with the given shape of a row; nothing in the file is executed."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in shapes}
    except KeyError as error:
        raise BadData(f"{path} lacks an array: {error.args[0]}; it needs {', '.join(shapes)}") from error
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise BadData(f"{path} is damaged or no .npz file ({' '.join(str(error).split())})") from error
    rows = len(next(iter(arrays.values())))
    for name, shape in shapes.items():
        if arrays[name].shape != (rows, *shape):
            raise BadData(f"{path}: array {name!r} has shape {arrays[name].shape}; it must be {(rows, *shape)}")
    if not rows:
        raise BadData(f"{path} has no samples")
    return arrays
