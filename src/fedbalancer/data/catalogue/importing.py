"""Import of data files into the data folder.

The files are first linked into a staging folder and loaded from there. They are moved into the data folder only if the
task can be loaded from them: all of them, or none.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp

from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.core.files import FolderLock, cache_folder, data_folder, looking_in, sync_directory
from fedbalancer.data.archives import is_archive, unpack
from fedbalancer.data.catalogue.catalog import Facts, inspect, save_facts
from fedbalancer.data.source import Source

_STAGING = ".importing-"

Take = Callable[[Path, Path], None]
"""How something comes from where it is to where it shall be."""


def import_data(
    task: str, source: Source, given: Path, take: Take, *, scale: str = "small", overwrite: bool = False
) -> Facts:
    """Check what was given by loading it, and put it where the source expects it. Files of the source that are not
    among what was given may be in the data folder already. An error leaves everything as it was."""
    _check(task, source, given, overwrite)
    with _staging() as staging:
        found = locate(source.files, given, staging / "unpacked", source.downloads)
        _check_complete(source, found, given)
        _link_all(source, found, staging / "check")
        with looking_in(staging / "check"), _named_as_given({staging / "check" / file: found[file] for file in found}):
            facts = inspect(task, source, scale)
        new = {file: staging / "new" / file for file in found}
        for file, path in found.items():
            new[file].parent.mkdir(parents=True, exist_ok=True)
            _taker(path, staging, take)(path, new[file])
        if hasattr(os, "sync"):  # all at once: file by file, a hundred thousand images would take hours
            os.sync()
        _exchange(new, staging / "old")
    save_facts(facts, source)
    return facts


def copy_path(path: Path, target: Path) -> None:
    """Copy a file or a folder; links in it become what they point to."""
    if path.is_dir():
        shutil.copytree(path, target)
    else:
        shutil.copy2(path, target)


def link_path(path: Path, target: Path) -> None:
    """Leave the thing where it is, and point to it."""
    target.symlink_to(path.absolute(), target_is_directory=path.is_dir())


def hard_link_path(path: Path, target: Path) -> None:
    """A second name for a file, or where the disk has none, a copy; what is left under the first is not needed."""
    try:
        os.link(path, target)
    except OSError:
        copy_path(path, target)


def _move(path: Path, target: Path) -> None:
    os.replace(path, target)


def _taker(path: Path, staging: Path, take: Take) -> Take:
    if not path.is_relative_to(staging):
        return take
    if take is link_path:
        raise BadSetting(f"{path.name} comes from an archive, which cannot be linked to; leave out --link")
    return _move


def _check(task: str, source: Source, given: Path, overwrite: bool) -> None:
    if not given.exists():
        raise BadSetting(f"{given} does not exist; give the file or folder that holds the data")
    if source.present and not overwrite:
        where = ", ".join(map(str, source.paths))
        raise BadSetting(
            f"variant {source.variant!r} of task {task!r} is there already, at {where}; add --overwrite to replace it"
        )
    if any(given.resolve() == path.resolve() for path in source.paths):
        raise BadSetting(f"{given} is where it shall be already; type: fedbalancer data check {task}")
    if data_folder().resolve().is_relative_to(given.resolve()):
        raise BadSetting(f"{given} holds the data folder {data_folder()}; give the folder of this data alone")


def _check_complete(source: Source, found: Mapping[str, Path], given: Path) -> None:
    missing = [file for file in source.files if file not in found]
    if not found or any(not (data_folder() / file).exists() for file in missing):
        names = ", ".join(PurePosixPath(file).name for file in missing)
        together = " and ".join(PurePosixPath(file).name for file in source.files)
        raise BadData(f"{given} has no {names}; give a folder that holds {together}")


def _link_all(source: Source, found: Mapping[str, Path], folder: Path) -> None:
    """The files as the loader will see them, without copying them before they are known to be good."""
    for file in source.files:
        target = folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        path = found.get(file, data_folder() / file)
        try:
            link_path(path, target)
        except OSError:  # a system that does not let us
            copy_path(path, target)


@contextmanager
def _named_as_given(places: Mapping[Path, Path]) -> Iterator[None]:
    """What is wrong with data is said of the file that the user gave, not of the link to it that the loader saw."""
    try:
        yield
    except BadData as error:
        text = str(error)
        for staged, path in places.items():
            text = text.replace(str(staged), str(path))
        raise BadData(text) from error


@contextmanager
def _staging() -> Iterator[Path]:
    """A folder in the data folder, for one process at a time; whatever is left in it goes, now or the next time."""
    folder = data_folder().absolute()
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock(folder)
        try:
            for leftover in folder.glob(f"{_STAGING}*"):
                shutil.rmtree(leftover, ignore_errors=True)
            staging = Path(mkdtemp(prefix=_STAGING, dir=folder))
            try:
                yield staging
            finally:
                shutil.rmtree(staging, ignore_errors=True)
        finally:
            lock.release()
            if is_new:
                with suppress(OSError):  # there is something in it now
                    folder.rmdir()
    except OSError as error:
        raise BadSetting(
            f"nothing was brought to {folder}: {error}; it must be a folder that can be written"
        ) from error


def _lock(folder: Path) -> FolderLock:
    """One writer for a data folder; the lock lies in the cache, so that the data folder holds data alone."""
    place = cache_folder() / "locks" / hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    place.mkdir(parents=True, exist_ok=True)
    return FolderLock(place)


def _exchange(new: Mapping[str, Path], old: Path) -> None:
    """Put everything new in place; if that fails in the middle, everything old is put back."""
    undo: list[tuple[Path, Path]] = []
    try:
        for number, (file, path) in enumerate(new.items()):
            target, before = data_folder() / file, old / str(number)
            target.parent.mkdir(parents=True, exist_ok=True)
            before.parent.mkdir(exist_ok=True)
            if os.path.lexists(target):
                os.replace(target, before)
                undo.append((before, target))
            os.replace(path, target)
            undo.append((target, path))
            sync_directory(target.parent)
    except BaseException:
        for path, back in reversed(undo):
            os.replace(path, back)
        raise


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
