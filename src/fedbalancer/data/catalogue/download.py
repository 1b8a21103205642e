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
"""Told how many bytes are there, and of how many if the server says so."""

TIMEOUT_S = 30.0
TRIES = 3
CHUNK_BYTES = 1 << 18


class Unreachable(MissingData):
    """A file that the network does not give; the message says why."""


def fetch(url: str, target: Path, sha256: str = "", progress: Progress = lambda done, total: None) -> None:
    """Fetch `url` to `target`. A file that is there already and has the right checksum is not fetched again; what fails
    is tried `TRIES` times, from the beginning."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise BadSetting(f"{url} cannot be fetched; an address starts with https:// or http://")
    pooch.get_logger().setLevel("ERROR")  # errors of ours say the same in one line
    name, wanted = target.name, f"sha256:{sha256}" if sha256 else None
    source = pooch.create(target.parent, "", registry={name: wanted}, urls={name: url}, retry_if_failed=TRIES - 1)
    # Unless told, servers may pack the body, and neither its length nor its checksum would be that of the file.
    headers = {"User-Agent": "fedbalancer", "Accept-Encoding": "identity"}
    get = pooch.HTTPDownloader(_Bar(progress), CHUNK_BYTES, headers=headers, timeout=TIMEOUT_S)
    try:
        source.fetch(name, downloader=get)
    except RequestException as error:
        raise Unreachable(f"{url} {_reason(error)}") from error
    except ValueError as error:
        raise BadData(f"{url} is not the file that is expected: {error}") from error
    except OSError as error:
        raise BadSetting(f"{target} cannot be written: {error}; set FEDBALANCER_DATA to a folder that can") from error


class _Bar:
    """What pooch takes for a progress bar. Every try starts with setting its total, 0 where the server does not say."""

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
        """Chunks are counted as if all were full, so that the last one goes beyond the end."""
        self._done_bytes += more_bytes
        total = self._total_bytes or None
        self._progress(min(self._done_bytes, total or self._done_bytes), total)

    def reset(self) -> None:
        """At the end pooch counts everything once more; we are there already."""

    close = reset


def _reason(error: RequestException) -> str:
    """What the server answered, or where the error began: what the libraries between add is long, and about them."""
    if error.response is not None:
        return f"answers {error.response.status_code} {error.response.reason}"
    root: BaseException = error
    while root.__context__ is not None:
        root = root.__context__
    return f"cannot be fetched: {str(root) or type(root).__name__}"


DOWNLOADS = "downloads"


def get(
    task: str, source: Source, progress: Callable[[str], Progress], *, scale: str = "small", overwrite: bool = False
) -> Facts:
    """Fetch the files of a source, check them by loading them, and put them in place. `progress` is told the name of
    each file, and gives what is told of its bytes. Files that have arrived whole are kept for the next try."""
    if not source.urls:
        raise MissingData(_by_hand(task, source))
    folder = data_folder() / DOWNLOADS / f"{source.task}-{source.variant}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(folder)
    except OSError as error:
        raise BadSetting(f"{folder} cannot be written: {error}; set {DATA} to a folder that can") from error
    try:
        _fetch_all(task, source, folder, progress)
        facts = import_data(task, source, folder, hard_link_path, scale=scale, overwrite=overwrite)
    except BadData:
        _clear(folder)  # going on from it would end in the same error
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
            given = folder if len(source.urls) > 1 else target
            raise Unreachable(
                f"{error}; type the same command again, or fetch it by hand, save it as {target} and type: "
                f"fedbalancer data import {task} {shlex.quote(str(given))} --variant {source.variant}"
            ) from error


def _by_hand(task: str, source: Source) -> str:
    how = f"{source.by_hand.rstrip(' .;')}; " if source.by_hand else f"get {', '.join(source.files)} by hand; "
    return (
        f"variant {source.variant!r} of task {task!r} cannot be fetched: {how}"
        f"then type: fedbalancer data import {task} PATH --variant {source.variant}"
    )


def _clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # others are being fetched
        folder.parent.rmdir()
