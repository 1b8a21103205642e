"""Downloads of official data: a file is saved completely and with the right checksum, or not at all."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pooch
from requests import RequestException

from fedbalancer.core.errors import BadData, BadSetting, MissingData
from fedbalancer.core.files import DATA, FolderLock, data_folder
from fedbalancer.data.catalogue.catalog import Facts
from fedbalancer.data.catalogue.importing import hard_link_path, import_data
from fedbalancer.data.source import Source

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
