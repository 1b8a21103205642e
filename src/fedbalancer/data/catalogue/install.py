"""Import of data files into the data folder, and downloads of official data.

The files are first linked into a staging folder and loaded from there. They are moved into the data folder only if the
task can be loaded from them: all of them, or none. A downloaded file is
saved completely and with the right checksum, or not at all.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp
from urllib.parse import urlsplit

import pooch
from requests import RequestException

from fedbalancer.core.errors import BadData, BadSetting, MissingData
from fedbalancer.core.files import DATA, FolderLock, cache_folder, data_folder, looking_in, sync_directory
from fedbalancer.data.archives import is_archive, unpack
from fedbalancer.data.catalogue.catalog import Facts, inspect, save_facts
from fedbalancer.data.source import Source

_STAGING = ".importing-"

Take = Callable[[Path, Path], None]
"""How a file gets from its path to its target."""


def import_data(
    task: str, source: Source, given: Path, take: Take, *, scale: str = "small", overwrite: bool = False
) -> Facts:
    """Check data by loading the task, and put them into the data folder. An error changes nothing.

    Args:
        task: Name of the task.
        source: Source that the data are for.
        given: File, folder or archive with the data. Files that it lacks may already be in the data folder.
        take: How files get into the data folder: `copy_path`, `link_path` or `hard_link_path`.
        scale: Scale at which the task is loaded.
        overwrite: Whether to replace existing files.

    Raises:
        BadData: If files are missing, or the task cannot be loaded from them.
        BadSetting: If the path is wrong, the data already exist, or the data folder cannot be written.
    """
    _check(task, source, given, overwrite)
    with _make_staging() as staging:
        paths = locate(source.files, given, staging / "unpacked", source.downloads)
        _check_complete(source, paths, given)
        _link_all(source, paths, staging / "check")
        with looking_in(staging / "check"), _name_given({staging / "check" / file: paths[file] for file in paths}):
            facts = inspect(task, source, scale)
        new = {file: staging / "new" / file for file in paths}
        for file, path in paths.items():
            new[file].parent.mkdir(parents=True, exist_ok=True)
            _choose_take(path, staging, take)(path, new[file])
        if hasattr(os, "sync"):  # once: one call per file would take hours for 100,000 images
            os.sync()
        _replace_all(new, staging / "old")
    save_facts(facts, source)
    return facts


def copy_path(path: Path, target: Path) -> None:
    """Copy a file or a folder, following links."""
    if path.is_dir():
        shutil.copytree(path, target)
    else:
        shutil.copy2(path, target)


def link_path(path: Path, target: Path) -> None:
    """Make a symbolic link."""
    target.symlink_to(path.absolute(), target_is_directory=path.is_dir())


def hard_link_path(path: Path, target: Path) -> None:
    """Make a hard link, or a copy if the file system has no hard links."""
    try:
        os.link(path, target)
    except OSError:
        copy_path(path, target)


def _move(path: Path, target: Path) -> None:
    os.replace(path, target)


def _choose_take(path: Path, staging: Path, take: Take) -> Take:
    if not path.is_relative_to(staging):
        return take
    if take is link_path:
        raise BadSetting(f"{path.name} is in an archive, which cannot be linked; omit --link")
    return _move


def _check(task: str, source: Source, given: Path, overwrite: bool) -> None:
    if not given.exists():
        raise BadSetting(f"{given} does not exist; give the file or folder with the data")
    if source.is_present and not overwrite:
        where = ", ".join(map(str, source.paths))
        raise BadSetting(
            f"variant {source.variant!r} of task {task!r} already exists at {where}; add --overwrite to replace it"
        )
    if any(given.resolve() == path.resolve() for path in source.paths):
        raise BadSetting(f"{given} is already in the data folder; run: fedbalancer data check {task}")
    if data_folder().resolve().is_relative_to(given.resolve()):
        raise BadSetting(f"{given} contains the data folder {data_folder()}; give a folder with only these data")


def _check_complete(source: Source, paths: Mapping[str, Path], given: Path) -> None:
    missing = [file for file in source.files if file not in paths]
    if not paths or any(not (data_folder() / file).exists() for file in missing):
        names = ", ".join(PurePosixPath(file).name for file in missing)
        required = " and ".join(PurePosixPath(file).name for file in source.files)
        raise BadData(f"{given} has no {names}; give a folder with {required}")


def _link_all(source: Source, paths: Mapping[str, Path], folder: Path) -> None:
    """Link the files into a folder for the loader, so that nothing is copied before it is checked."""
    for file in source.files:
        target = folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        path = paths.get(file, data_folder() / file)
        try:
            link_path(path, target)
        except OSError:  # the system does not allow links
            copy_path(path, target)


@contextmanager
def _name_given(given: Mapping[Path, Path]) -> Iterator[None]:
    """Replace the staged paths in errors by the paths that the user gave."""
    try:
        yield
    except BadData as error:
        text = str(error)
        for staged, path in given.items():
            text = text.replace(str(staged), str(path))
        raise BadData(text) from error


@contextmanager
def _make_staging() -> Iterator[Path]:
    """Make a temporary folder in the data folder, for one process at a time, and remove it in the end."""
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
                with suppress(OSError):  # it is not empty
                    folder.rmdir()
    except OSError as error:
        raise BadSetting(f"nothing was imported into {folder}: {error}; it must be a writable folder") from error


def _lock(folder: Path) -> FolderLock:
    """Lock a data folder. The lock is in the cache folder, so the data folder contains only data."""
    path = cache_folder() / "locks" / hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    path.mkdir(parents=True, exist_ok=True)
    return FolderLock(path)


def _replace_all(new: Mapping[str, Path], old: Path) -> None:
    """Move all new files into the data folder. If a move fails, undo all of them."""
    undo: list[tuple[Path, Path]] = []
    try:
        for number, (file, path) in enumerate(new.items()):
            target, backup = data_folder() / file, old / str(number)
            target.parent.mkdir(parents=True, exist_ok=True)
            backup.parent.mkdir(exist_ok=True)
            if os.path.lexists(target):
                os.replace(target, backup)
                undo.append((backup, target))
            os.replace(path, target)
            undo.append((target, path))
            sync_directory(target.parent)
    except BaseException:
        for path, back in reversed(undo):
            os.replace(path, back)
        raise


_DEPTH = 2
"""Levels of nested archives that are unpacked."""


def locate(wanted: Sequence[str], given: Path, unpacked: Path, archive_names: Collection[str] = ()) -> dict[str, Path]:
    """Find the files of a source in a file, folder or archive. A single file may have any name.

    Args:
        wanted: Paths of the files, relative to the data folder.
        given: File, folder or archive to search.
        unpacked: Folder into which archives are unpacked.
        archive_names: Names of the archives that are unpacked if `given` is a folder.

    Returns:
        The paths of the files that exist.
    """
    roots = level = [given]
    archives = _find_archives(given, archive_names, wanted)
    matches = _find_files(wanted, roots)
    for depth in range(_DEPTH):
        if len(matches) == len(wanted) or not archives:
            break
        level = _unpack_all(archives, unpacked / str(depth))
        archives = [file for folder in level for file in sorted(folder.iterdir()) if _is_unpackable(file, wanted)]
        roots = roots + level
        matches = _find_files(wanted, roots)
    if not matches and len(wanted) == len(level) == 1:
        return {wanted[0]: level[0] if level[0] == given else _strip_root(level[0])}
    return matches


def _find_files(wanted: Sequence[str], roots: Sequence[Path]) -> dict[str, Path]:
    matches = {file: _find_file(PurePosixPath(file), roots) for file in wanted}
    return {file: path for file, path in matches.items() if path is not None}


def _find_file(wanted: PurePosixPath, roots: Sequence[Path]) -> Path | None:
    """Find a file by the longest part of its path, in the roots and in the folders directly below them."""
    tails = [PurePosixPath(*wanted.parts[start:]) for start in range(len(wanted.parts))]
    folders = [root for root in roots if root.is_dir()]
    deeper = [below for folder in folders for below in sorted(folder.iterdir()) if below.is_dir()]
    for tail in tails:
        for folder in (*folders, *deeper):
            if (folder / tail).exists():
                return folder / tail
    return next((root for root in roots if root.name == wanted.name), None)


def _find_archives(given: Path, names: Collection[str], wanted: Sequence[str]) -> list[Path]:
    if given.is_dir():  # it may contain other archives, for example a folder of downloads
        return [given / name for name in names if _is_unpackable(given / name, wanted)]
    return [given] if _is_unpackable(given, wanted) else []


def _is_unpackable(file: Path, wanted: Sequence[str]) -> bool:
    return file.is_file() and is_archive(file.name) and all(PurePosixPath(name).name != file.name for name in wanted)


def _unpack_all(archives: Sequence[Path], into: Path) -> list[Path]:
    folders = [into / str(number) for number in range(len(archives))]
    for archive, folder in zip(archives, folders, strict=True):
        unpack(archive, folder)
    return folders


def _strip_root(folder: Path) -> Path:
    """Return the only entry of an unpacked archive, or the whole folder."""
    entries = sorted(folder.iterdir())
    return entries[0] if len(entries) == 1 else folder


Progress = Callable[[int, int | None], None]
"""Called with the number of downloaded bytes, and the total if the server reports it."""

TIMEOUT_S = 30.0
TRIES = 3
CHUNK_BYTES = 1 << 18


class Unreachable(MissingData):
    """A file that cannot be downloaded."""


def fetch(url: str, target: Path, sha256: str = "", progress: Progress = lambda done, total: None) -> None:
    """Download a file. A file that exists and has the right checksum is not downloaded again.

    Args:
        url: Address of the file.
        target: Where to save it.
        sha256: Expected checksum; "" if unknown.
        progress: Called after every chunk.

    Raises:
        Unreachable: If the download fails `TRIES` times.
        BadData: If the checksum is wrong.
        BadSetting: If the address is invalid or the file cannot be written.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise BadSetting(f"{url} cannot be downloaded; an address starts with https:// or http://")
    pooch.get_logger().setLevel("ERROR")  # the errors below say the same in one line
    name, known_hash = target.name, f"sha256:{sha256}" if sha256 else None
    source = pooch.create(target.parent, "", registry={name: known_hash}, urls={name: url}, retry_if_failed=TRIES - 1)
    # By default servers may compress the body, which changes its length and its checksum.
    headers = {"User-Agent": "fedbalancer", "Accept-Encoding": "identity"}
    get = pooch.HTTPDownloader(_Bar(progress), CHUNK_BYTES, headers=headers, timeout=TIMEOUT_S)
    try:
        source.fetch(name, downloader=get)
    except RequestException as error:
        raise Unreachable(f"{url} {_reason(error)}") from error
    except ValueError as error:
        raise BadData(f"{url} is not the expected file: {error}") from error
    except OSError as error:
        raise BadSetting(f"{target} cannot be written: {error}; set FEDBALANCER_DATA to a writable folder") from error


class _Bar:
    """A progress bar for pooch, which sets `total` at the start of every try (0 if it is unknown)."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    @property
    def total(self) -> int:
        return self._total_bytes

    @total.setter
    def total(self, total_bytes: int) -> None:
        self._done_bytes, self._total_bytes = 0, total_bytes
        self.update(0)

    def update(self, more_bytes: int) -> None:
        """Add bytes. Pooch counts every chunk as full, so the last one may exceed the total."""
        self._done_bytes += more_bytes
        total = self._total_bytes or None
        self._progress(min(self._done_bytes, total or self._done_bytes), total)

    def reset(self) -> None:
        """Do nothing: at the end, pooch counts everything once more."""

    close = reset


def _reason(error: RequestException) -> str:
    """Return the server's answer, or the root cause of the error without the messages of the libraries."""
    if error.response is not None:
        return f"answers {error.response.status_code} {error.response.reason}"
    root: BaseException = error
    while root.__context__ is not None:
        root = root.__context__
    return f"cannot be downloaded: {str(root) or type(root).__name__}"


DOWNLOADS = "downloads"


def download_data(
    task: str, source: Source, progress: Callable[[str], Progress], *, scale: str = "small", overwrite: bool = False
) -> Facts:
    """Download the files of a source, check them by loading the task, and import them.

    Complete downloads are kept for the next try if another download fails.

    Args:
        task: Name of the task.
        source: The source.
        progress: Called with the name of every file; returns the function that follows its download.
        scale: Scale at which the task is loaded.
        overwrite: Whether to replace existing files.

    Raises:
        MissingData: If the source has no address, or a download fails.
        BadData: If the task cannot be loaded from the files.
        BadSetting: If the data folder cannot be written.
    """
    if not source.urls:
        raise MissingData(_explain_by_hand(task, source))
    folder = data_folder() / DOWNLOADS / f"{source.task}-{source.variant}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(folder)
    except OSError as error:
        raise BadSetting(f"{folder} cannot be written: {error}; set {DATA} to a writable folder") from error
    try:
        _fetch_all(task, source, folder, progress)
        facts = import_data(task, source, folder, hard_link_path, scale=scale, overwrite=overwrite)
    except BadData:
        _clear(folder)  # the same files would give the same error again
        raise
    finally:
        lock.release()
    _clear(folder)
    return facts


def _fetch_all(task: str, source: Source, folder: Path, progress: Callable[[str], Progress]) -> None:
    checksums = source.sha256 if len(source.sha256) == len(source.urls) else ("",) * len(source.urls)
    targets = [folder / name for name in source.downloads]
    for url, target, sha256 in zip(source.urls, targets, checksums, strict=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            fetch(url, target, sha256, progress(target.name))
        except Unreachable as error:
            path = folder if len(source.urls) > 1 else target
            raise Unreachable(
                f"{error}; run the same command again, or download it yourself, save it as {target} and run: "
                f"fedbalancer data import {task} {shlex.quote(str(path))} --variant {source.variant}"
            ) from error


def _explain_by_hand(task: str, source: Source) -> str:
    how = f"{source.by_hand.rstrip(' .;')}; " if source.by_hand else f"get {', '.join(source.files)} yourself; "
    return (
        f"variant {source.variant!r} of task {task!r} cannot be downloaded: {how}"
        f"then run: fedbalancer data import {task} PATH --variant {source.variant}"
    )


def _clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # other downloads are in progress
        folder.parent.rmdir()
