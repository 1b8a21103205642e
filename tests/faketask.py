"""A task with files of its own, small enough to import, damage and fetch in every test: `faketask:load`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedbalancer.core.errors import BadData
from fedbalancer.data import (
    Prepared,
    SlicedClients,
    Source,
    Task,
    checksum,
    choose_source,
    concatenate_users,
    load_or_prepare,
)

FOLDER = Source(
    task="fake", variant="folder", title="two files in a folder", files=("fake-set",), licence="none", citation="nobody"
)
TWO = Source(
    task="fake", variant="two", title="two files", files=("fake/a.npz", "fake/b.npz"), licence="free", citation="two",
    by_hand="fill in the form of its makers.",
)  # fmt: skip
ONE = Source(
    task="fake", variant="one", title="one file", files=("one.npz",), licence="free", citation="one", official=False
)
SOURCES = (FOLDER, TWO, ONE)


def write(path: Path, users: int = 3, *, first: str = "a", bad: bool = False) -> Path:
    """A data file: user n has n + 2 samples."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = np.concatenate([np.full(number + 2, f"{first}{number}") for number in range(users)])
    labels = np.arange(len(names)) % 2
    np.savez(path, user=names, x=np.full((len(names), 3), np.nan if bad else 1.0, np.float32), y=labels)
    return path


def read(path: Path) -> dict[str, tuple[Any, Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            user, x, y = file["user"], file["x"], file["y"]
    except (OSError, ValueError, EOFError) as error:
        raise BadData(f"{path} is no file of the fake task: {error}") from error
    return {str(name): (x[user == name], y[user == name]) for name in np.unique(user)}


def load(scale: str = "small", users: int | None = None, variant: str | None = None) -> Task:
    source = choose_source(SOURCES, variant)
    files = [file for path in source.paths for file in (sorted(path.glob("*.npz")) if path.is_dir() else [path])]

    def make() -> Prepared:
        names, lengths, x, y = concatenate_users(
            {name: samples for file in files for name, samples in read(file).items()}
        )
        return Prepared({"x": x, "y": y}, {"names": names, "lengths": lengths})

    data = load_or_prepare("fake", {"sources": [checksum(path) for path in source.paths]}, make)
    clients = SlicedClients(
        tuple(data.meta["names"]), tuple(data.meta["lengths"]), data.arrays["x"], data.arrays["y"]
    )  # fmt: skip
    test = (np.zeros((2, 3), np.float32), np.array([0, 1]))
    return Task(clients=clients, test=test, model=lambda: None, name="fake", variant=source.variant, classes=2)
