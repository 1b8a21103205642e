"""`.npz` files of NumPy, read without ever unpickling."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fedbalancer.errors import BadData, UnknownName
from fedbalancer.tasks.own.arrays import from_table, pair
from fedbalancer.tasks.own.models import Model
from fedbalancer.tasks.own.options import OwnOptions, divided
from fedbalancer.tasks.task import Task


class NpzFile:
    """The arrays of one file by name; a missing name is an error that suggests the nearest."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with np.load(path, allow_pickle=False) as content:
                self.arrays: dict[str, NDArray[Any]] = {name: content[name] for name in content.files}
        except FileNotFoundError as error:
            raise BadData(f"there is no file {path}") from error
        except (OSError, ValueError, EOFError, BadZipFile, AttributeError) as error:
            raise BadData(f"{path} is not an .npz file of plain arrays: {error}") from error

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self.arrays:
            raise UnknownName(f"array in {self.path}", name, self.arrays) from None
        return self.arrays[name]


def from_npz(
    path: Path | str,
    *,
    model: Model,
    features: str = "x",
    label: str = "y",
    user: str | None = None,
    classes: int | None = None,
    **options: Unpack[OwnOptions],
) -> Task:
    """One file with all samples: arrays x and y (or as named), `users` where there are any, and x_test and y_test
    where there is a test."""
    split, settings = divided(options)
    arrays = NpzFile(Path(path))
    if user is None and "partition" not in split and "users" in arrays:
        user = "users"
    has_test = f"{features}_test" in arrays or f"{label}_test" in arrays
    return from_table(
        pair((arrays[features], arrays[label]), str(path)),
        arrays[user] if user is not None else None,
        pair((arrays[f"{features}_test"], arrays[f"{label}_test"]), f"the test of {path}") if has_test else None,
        model,
        classes,
        split,
        {"name": Path(path).stem, **settings},
        str(path),
    )
