"""The official data, fetched from where its makers put it."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedbalancer.core.errors import BadData, BadSetting, MissingData
from fedbalancer.core.lock import FolderLock
from fedbalancer.core.paths import DATA, data_folder
from fedbalancer.data.catalogue.download import Progress, Unreachable, fetch
from fedbalancer.data.catalogue.facts import Facts
from fedbalancer.data.catalogue.importing import bring, hard_linked
from fedbalancer.data.source import Source

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
        facts = bring(task, source, folder, hard_linked, scale=scale, overwrite=overwrite)
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
