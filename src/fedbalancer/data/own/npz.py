"""`.npz` files of NumPy, read without ever unpickling."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

from numpy.typing import NDArray

from fedbalancer.core.errors import UnknownName
from fedbalancer.data.own.arrays import from_table, pair
from fedbalancer.data.own.models import Model
from fedbalancer.data.own.options import OwnOptions, divided
from fedbalancer.data.readers.npz import load_npz
from fedbalancer.data.tasks.task import Task


class NpzFile(dict[str, NDArray[Any]]):
    """The arrays of one file by name; a missing name is an error that suggests the nearest."""

    def __init__(self, path: Path) -> None:
        super().__init__(load_npz(path))
        self.path = path

    def __missing__(self, name: str) -> NDArray[Any]:
        raise UnknownName(f"array in {self.path}", name, self)


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
