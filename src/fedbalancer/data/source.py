"""A source of a task's data: the official one as its users have it, or a stand-in that says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbalancer.data.places import data_folder
from fedbalancer.errors import MissingData, UnknownName


@dataclass(frozen=True)
class Source:
    """One variant of a task's data.

    `files` are what must be there, relative to the data folder; a folder counts as well. `urls` are where `data get`
    fetches from, `sha256` what is known of their content, `by_hand` what to do where nothing can be fetched.
    """

    task: str
    variant: str
    title: str
    files: tuple[str, ...]
    licence: str
    citation: str
    official: bool = True
    urls: tuple[str, ...] = ()
    sha256: tuple[str, ...] = ()
    by_hand: str = ""

    @property
    def paths(self) -> tuple[Path, ...]:
        """Where the files would be."""
        return tuple(data_folder() / file for file in self.files)

    @property
    def present(self) -> bool:
        return all(path.exists() for path in self.paths)


def choose(sources: Sequence[Source], variant: str | None = None) -> Source:
    """The variant asked for, or else the first that is there; the official one comes first in every list."""
    task = sources[0].task
    if variant is not None:
        named = next((source for source in sources if source.variant == variant), None)
        if named is None:
            raise UnknownName(f"variant of {task}", variant, [source.variant for source in sources])
        if not named.present:
            raise MissingData(_absent(task, f"variant {variant!r} of task {task!r}", named))
        return named
    found = next((source for source in sources if source.present), None)
    if found is None:
        raise MissingData(_absent(task, f"task {task!r}", sources[0]))
    return found


def _absent(task: str, what: str, source: Source) -> str:
    return (
        f"{what} needs {', '.join(source.files)} in {data_folder()}; type: fedbalancer data get {task}, "
        "or set FEDBALANCER_DATA to the folder that holds it"
    )
