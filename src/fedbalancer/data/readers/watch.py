"""Reader of the smartwatch recordings in the package `seglearn`, without importing it.

The file is a pickled dictionary. Unpickling can run any code, so only the names that a dictionary of NumPy arrays needs
are allowed.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, MissingData


@dataclass(frozen=True, eq=False)
class Recording:
    """One exercise of one arm of one person.

    Args:
        person: Number of the person.
        side: "left" or "right".
        exercise: Number of the exercise.
        signal: Readings as (time, channel), one every 20 ms.
    """

    person: int
    side: str
    exercise: int
    signal: NDArray[np.float64]


def recordings_path() -> Path:
    """Return the path of the recordings. `seglearn` is not imported, because it needs undeclared packages.

    Raises:
        MissingData: If `seglearn` is not installed.
    """
    spec = find_spec("seglearn")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "data" / "watch_dataset.npy"
        if path.is_file():
            return path
    raise MissingData("the smartwatch recordings are not installed; run: pip install 'fedbalancer[demo]'")


def read_recordings(path: Path) -> list[Recording]:
    """Read all recordings of the file.

    Raises:
        BadData: If the file is invalid.
    """
    with path.open("rb") as file:
        data = read_pickled_npy(file, str(path))
    try:
        columns = zip(data["subject"], data["side"], data["y"], data["X"], strict=True)
        return [
            Recording(int(person), "right" if side else "left", int(exercise), np.asarray(signal, dtype=np.float64))
            for person, side, exercise, signal in columns
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise BadData(f"{path} is not the file of recordings of seglearn 1.2.5: {error!r}") from error


def read_pickled_npy(file: BinaryIO, where: str) -> Mapping[str, Any]:
    """Read a dictionary of arrays from a `.npy` file.

    Args:
        file: The open file.
        where: Its name, for errors.

    Raises:
        BadData: If the file contains anything else.
    """
    try:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("not of version 1.0")
        np.lib.format.read_array_header_1_0(file)
        holder = _ArraysOnly(file).load()
        data = holder.item()
    except (pickle.UnpicklingError, ValueError, TypeError, AttributeError, EOFError, LookupError) as error:
        raise BadData(f"{where} is not a .npy file of plain arrays: {error}") from error
    if not isinstance(data, dict):
        raise BadData(f"{where} holds a {type(data).__name__} instead of a dictionary of arrays")
    return data


def _latin1(text: str, encoding: str) -> bytes:
    """Decode bytes of pickle protocol 2. No other encoding is allowed."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding!r} is not allowed")
    return text.encode("latin1")


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that allows NumPy arrays and plain types, and refuses every other name."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        rebuild: Any = np.empty(0).__reduce__()[0]  # its module differs between versions of NumPy
        allowed: dict[tuple[str, str], Callable[..., Any]] = {
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("numpy.core.multiarray", "_reconstruct"): rebuild,
            ("numpy._core.multiarray", "_reconstruct"): rebuild,
            ("_codecs", "encode"): _latin1,
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        return allowed[module, name]
