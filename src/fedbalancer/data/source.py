"""A source of a task's data: the official one as its users have it, or a stand-in that says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from fedbalancer.core.errors import MissingData, UnknownName
from fedbalancer.core.files import data_folder
from fedbalancer.data.archives import is_archive


@dataclass(frozen=True)
class Source:
    """One variant of a task's data.

    `files` are what must be there, relative to the data folder; a folder counts as well. `urls` are where `data get`
    fetches from: each is an archive that holds some of the files, or else the file of the same number. `sha256` is
    what is known of the urls' content, url by url ("" for unknown), `by_hand` what to do where nothing can be fetched.
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

    @property
    def downloads(self) -> tuple[str, ...]:
        """Under which name each url is kept until it is checked: that of the archive, or of the file that it is."""
        names = [
            PurePosixPath(unquote(urlsplit(url).path)).name or f"{self.task}-{n}" for n, url in enumerate(self.urls)
        ]
        if len(names) != len(self.files):
            return tuple(names)
        pairs = zip(names, self.files, strict=True)
        return tuple(name if is_archive(name) and not file.endswith(name) else file for name, file in pairs)

    @property
    def kind(self) -> str:
        return "official" if self.official else "stand-in"


def find_source(sources: Sequence[Source], variant: str | None = None) -> Source:
    """The variant of that name, present or not; without a name the first, which is the official one."""
    if variant is None:
        return sources[0]
    found = next((source for source in sources if source.variant == variant), None)
    if found is None:
        raise UnknownName(f"variant of {sources[0].task}", variant, [source.variant for source in sources])
    return found


def choose_source(sources: Sequence[Source], variant: str | None = None) -> Source:
    """The variant asked for, or else the first that is there; the official one comes first in every list."""
    task = sources[0].task
    if variant is not None:
        asked = find_source(sources, variant)
        if not asked.present:
            raise MissingData(_absent(f"variant {variant!r} of task {task!r}", asked, f" --variant {variant}"))
        return asked
    found = next((source for source in sources if source.present), None)
    if found is None:
        raise MissingData(_absent(f"task {task!r}", sources[0], ""))
    return found


def _absent(what: str, source: Source, option: str) -> str:
    step = f"data get {source.task}" if source.urls else f"data import {source.task} PATH"
    missing = [file for file, path in zip(source.files, source.paths, strict=True) if not path.exists()]
    return (
        f"{what} needs {', '.join(missing)} in {data_folder()}; type: fedbalancer {step}{option}, "
        "or set FEDBALANCER_DATA to the folder that holds it"
    )
