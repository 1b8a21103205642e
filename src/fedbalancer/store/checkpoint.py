"""Checkpoints: directories with checksums, written atomically. Unless specified, the last two are kept.

    checkpoint/step-00000012/state.json          {"sha256": checksum of the body, "body": {"arrays": ..., "blob": ...}}
                             arrays.safetensors  its checksum is in the body

A checkpoint is written under a temporary name and renamed when all of it is on the disk. If a checksum does not match,
the previous checkpoint is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from fedbalancer.core.errors import RunFolderError
from fedbalancer.core.files import sync_directory, write_synced
from fedbalancer.store.codec import Arrays

FORMAT = 1
STATE, ARRAYS = "state.json", "arrays.safetensors"
KEPT = 2
"""Checkpoints that are kept unless specified: the newest, and one more in case it is damaged."""


class Checkpoints:
    """The checkpoints in one folder, for the only process that writes there.

    Args:
        folder: The folder.

    Attributes:
        warnings: One message per damaged checkpoint that `load_latest` skipped.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.warnings: list[str] = []
        self._newest_good: int | None = None

    def save(
        self, step: int, blob: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], keep: int = KEPT,
        pinned: Collection[int] = (),
    ) -> None:  # fmt: skip
        """Save a checkpoint, and remove old ones.

        Args:
            step: Number of the checkpoint.
            blob: Values that strict JSON can hold.
            arrays: Arrays by name.
            keep: Number of checkpoints to keep, with this one and the previous valid one.
            pinned: Checkpoints to keep as well.
        """
        temporary, final = self._temporary(), self._path(step)
        temporary.mkdir(parents=True)
        packed = safetensors.numpy.save({name: np.asarray(array, order="C") for name, array in arrays.items()})
        body = {"format": FORMAT, "step": step, "arrays": {"sha256": _sha256(packed), "names": list(arrays)}}
        write_synced(temporary / ARRAYS, packed)
        write_synced(temporary / STATE, _add_checksum(json.dumps(body | {"blob": blob}, allow_nan=False).encode()))
        sync_directory(temporary)
        if final.exists():
            self._discard(final)
        os.rename(temporary, final)
        sync_directory(self.folder)
        self._prune(step, keep, pinned)

    def load_latest(self) -> tuple[dict[str, Any], Arrays] | None:
        """Return blob and arrays of the newest valid checkpoint, or None if there is no checkpoint.

        Raises:
            RunFolderError: If all checkpoints are damaged.
        """
        self._remove_leftovers()
        steps = sorted(self._steps(), reverse=True)
        for step in steps:
            try:
                loaded = _load(self._path(step))
            except (OSError, _Damaged) as error:
                self.warnings.append(
                    f"checkpoint {self._path(step)} is damaged ({error}); using the previous checkpoint"
                )
                continue
            self._newest_good = step
            return loaded
        if steps:
            paths = " and ".join(str(self._path(step)) for step in steps)
            raise RunFolderError(f"no checkpoint can be read: {paths} are damaged; start again with --overwrite")
        return None

    def load(self, step: int) -> tuple[dict[str, Any], Arrays]:
        """Return blob and arrays of one checkpoint.

        Args:
            step: Number of the checkpoint.

        Raises:
            RunFolderError: If it is missing or damaged.
        """
        try:
            return _load(self._path(step))
        except (OSError, _Damaged) as error:
            raise RunFolderError(f"checkpoint {self._path(step)} cannot be read: {error}") from error

    def remove_after(self, step: int) -> None:
        """Remove all checkpoints after `step`, the newest first."""
        for later in sorted((each for each in self._steps() if each > step), reverse=True):
            self._discard(self._path(later))
        self._remove_leftovers()

    def _prune(self, newest: int, keep: int, pinned: Collection[int]) -> None:
        older = {step for step in self._steps() if step != newest}
        previous = self._newest_good if self._newest_good in older else max(older, default=None)
        self._newest_good = newest
        others = sorted(older - {previous})
        for step in set(others[: max(len(others) - (keep - KEPT), 0)]) - set(pinned):
            self._discard(self._path(step))
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        for leftover in self.folder.glob("tmp-*"):
            shutil.rmtree(leftover)

    def _discard(self, path: Path) -> None:
        """Rename a checkpoint, so that a process killed during removal leaves no partial checkpoint."""
        os.rename(path, self._temporary())

    def _steps(self) -> list[int]:
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        return [int(match[1]) for name in names if (match := re.fullmatch(r"step-(\d{8,})", name))]

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def _temporary(self) -> Path:
        return self.folder / f"tmp-{uuid.uuid4().hex}"


def peek_latest(folder: Path) -> tuple[dict[str, Any], Arrays] | None:
    """Return blob and arrays of the newest valid checkpoint while another process may write; None if there is none.

    Unlike `Checkpoints.load_latest`, it changes nothing in the folder.

    Args:
        folder: The folder of the checkpoints.
    """
    checkpoints = Checkpoints(folder)
    for step in sorted(checkpoints._steps(), reverse=True):
        try:
            return _load(checkpoints._path(step))
        except (OSError, ValueError, KeyError, _Damaged):  # removed or replaced meanwhile
            continue
    return None


class _Damaged(Exception):
    """A checkpoint's files are damaged."""


def _load(path: Path) -> tuple[dict[str, Any], Arrays]:
    body = json.loads(_check_body((path / STATE).read_bytes()))
    if body["format"] != FORMAT:
        raise RunFolderError(f"{path / STATE} has format {body['format']}, but this version reads format {FORMAT}")
    packed = (path / ARRAYS).read_bytes()
    if _sha256(packed) != body["arrays"]["sha256"]:
        raise _Damaged(f"{ARRAYS} does not match its checksum")
    loaded = safetensors.numpy.load(packed)
    # Copies read-only views, because callers may write into these arrays.
    return body["blob"], {name: np.require(loaded[name], requirements="W") for name in body["arrays"]["names"]}


def _add_checksum(body: bytes) -> bytes:
    return b'{"sha256": "%s", "body": %s}\n' % (_sha256(body).encode(), body)


def _check_body(data: bytes) -> bytes:
    body = data[len(_add_checksum(b"")) - len(b"}\n") : -len(b"}\n")]
    if data != _add_checksum(body):
        raise _Damaged(f"{STATE} does not match its checksum")
    return body


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
