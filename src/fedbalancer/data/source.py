"""Sources of data: official data, or a stand-in that is named as such."""

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

    Args:
        task: Name of the task.
        variant: Name of the variant.
        title: Description in one line.
        files: Required files and folders, relative to the data folder.
        licence: Licence of the data.
        citation: What to cite.
        official: Whether these are the data of the paper; otherwise they are a stand-in.
        urls: Addresses for `data get`. Each is an archive with some of the files, or the file at the same position.
        sha256: Checksum of each download; "" if unknown.
        by_hand: Instructions for data that cannot be downloaded.
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
        """Paths of the files in the data folder."""
        return tuple(data_folder() / file for file in self.files)

    @property
    def is_present(self) -> bool:
        """Whether all files exist."""
        return all(path.exists() for path in self.paths)

    @property
    def downloads(self) -> tuple[str, ...]:
        """File names of the downloads: of the archive, or of the file itself."""
        names = [
            PurePosixPath(unquote(urlsplit(url).path)).name or f"{self.task}-{n}" for n, url in enumerate(self.urls)
        ]
        if len(names) != len(self.files):
            return tuple(names)
        pairs = zip(names, self.files, strict=True)
        return tuple(name if is_archive(name) and not file.endswith(name) else file for name, file in pairs)

    @property
    def kind(self) -> str:
        """ "official" or "stand-in"."""
        return "official" if self.official else "stand-in"


def find_source(sources: Sequence[Source], variant: str | None = None) -> Source:
    """Return a source, whether its files exist or not.

    Args:
        sources: Sources of a task, the official one first.
        variant: Name of the variant. None: the official source.

    Raises:
        UnknownName: If there is no such variant.
    """
    if variant is None:
        return sources[0]
    for source in sources:
        if source.variant == variant:
            return source
    raise UnknownName(f"variant of {sources[0].task}", variant, [source.variant for source in sources])


def choose_source(sources: Sequence[Source], variant: str | None = None) -> Source:
    """Return the requested source, or the first one whose files exist.

    Args:
        sources: Sources of a task, the official one first.
        variant: Name of the variant. None: the first source whose files exist.

    Raises:
        MissingData: If the files do not exist.
        UnknownName: If there is no such variant.
    """
    task = sources[0].task
    if variant is not None:
        source = find_source(sources, variant)
        if not source.is_present:
            what = f"variant {variant!r} of task {task!r}"
            raise MissingData(_explain_missing(what, source, f" --variant {variant}"))
        return source
    for source in sources:
        if source.is_present:
            return source
    raise MissingData(_explain_missing(f"task {task!r}", sources[0], ""))


def _explain_missing(what: str, source: Source, option: str) -> str:
    step = f"data get {source.task}" if source.urls else f"data import {source.task} PATH"
    missing = [file for file, path in zip(source.files, source.paths, strict=True) if not path.exists()]
    return (
        f"{what} needs {', '.join(missing)} in {data_folder()}; run: fedbalancer {step}{option}, "
        "or set FEDBALANCER_DATA to the folder with the data"
    )
