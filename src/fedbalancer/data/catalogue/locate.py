"""Which of the things that a user has are the files that a source needs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath

from fedbalancer.data.archives import is_archive, unpack

_DEPTH = 2
"""How often archives inside of archives are unpacked."""


def locate(wanted: Sequence[str], given: Path, unpacked: Path, archive_names: Collection[str] = ()) -> dict[str, Path]:
    """Where the wanted files are: in the given file or folder, or in an archive, unpacked on the way into `unpacked`:
    the given one, or in the given folder one of `archive_names`. What cannot be found is left out. A single wanted
    file may have any name."""
    roots = level = [given]
    archives = _archives_given(given, archive_names, wanted)
    found = _matches(wanted, roots)
    for depth in range(_DEPTH):
        if len(found) == len(wanted) or not archives:
            break
        level = _unpack_all(archives, unpacked / str(depth))
        archives = [file for folder in level for file in sorted(folder.iterdir()) if _to_unpack(file, wanted)]
        roots = roots + level
        found = _matches(wanted, roots)
    if not found and len(wanted) == len(level) == 1:
        return {wanted[0]: level[0] if level[0] == given else _heart(level[0])}
    return found


def _matches(wanted: Sequence[str], roots: Sequence[Path]) -> dict[str, Path]:
    matches = {file: _match(PurePosixPath(file), roots) for file in wanted}
    return {file: path for file, path in matches.items() if path is not None}


def _match(wanted: PurePosixPath, roots: Sequence[Path]) -> Path | None:
    """The wanted file by the longest end of its path that is there: in a folder, one below it, or the folder itself."""
    tails = [PurePosixPath(*wanted.parts[start:]) for start in range(len(wanted.parts))]
    folders = [root for root in roots if root.is_dir()]
    deeper = [below for folder in folders for below in sorted(folder.iterdir()) if below.is_dir()]
    for tail in tails:
        for folder in (*folders, *deeper):
            if (folder / tail).exists():
                return folder / tail
    return next((root for root in roots if root.name == wanted.name), None)


def _archives_given(given: Path, names: Collection[str], wanted: Sequence[str]) -> list[Path]:
    if given.is_dir():  # a folder of downloads may hold any number of other archives
        return [given / name for name in names if _to_unpack(given / name, wanted)]
    return [given] if _to_unpack(given, wanted) else []


def _to_unpack(file: Path, wanted: Sequence[str]) -> bool:
    return file.is_file() and is_archive(file.name) and all(PurePosixPath(name).name != file.name for name in wanted)


def _unpack_all(archives: Sequence[Path], into: Path) -> list[Path]:
    folders = [into / str(number) for number in range(len(archives))]
    for archive, folder in zip(archives, folders, strict=True):
        unpack(archive, folder)
    return folders


def _heart(folder: Path) -> Path:
    """What an archive holds: the one thing in it, or all of it."""
    inside = sorted(folder.iterdir())
    return inside[0] if len(inside) == 1 else folder
