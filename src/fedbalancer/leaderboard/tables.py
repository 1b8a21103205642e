"""The Parquet files of a folder of results, read so that a damaged one is named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from fedbalancer.errors import RunFolderError

METHODS, OWN = "methods.parquet", "own"
"""The table that makes a folder an item's or a user's comparison, and the folder in which those of users are."""


def table(file: Path) -> pl.DataFrame:
    """All of a file. It is not read by its path, which may have characters in it that would make a pattern of it."""
    with reading(file), file.open("rb") as opened:
        return pl.read_parquet(opened)


def columns(file: Path) -> set[str]:
    """The names of a file's columns; no more of it is read."""
    with reading(file), file.open("rb") as opened:
        return set(pl.read_parquet_schema(opened))


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """What goes wrong in here is the file's fault, and the error says which."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise RunFolderError(f"{file} cannot be read: {why}") from error
