"""One writer per folder: an advisory lock that ends with the process that holds it, however that ends."""

from __future__ import annotations

import os
import sys
import time
import weakref
from pathlib import Path

from fedbalancer.errors import RunFolderError

if sys.platform != "win32":
    import fcntl

LOCK = ".lock"


class FolderLock:
    """The lock on `folder`, held from now until `release`. Raises `RunFolderError` if another writer holds it for the
    next `patience_s`."""

    def __init__(self, folder: Path, patience_s: float = 0.0) -> None:
        try:
            self._descriptor: int | None = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise RunFolderError(f"{folder} cannot be written to: {error}") from error
        if sys.platform == "win32":  # no such lock there
            return
        try:
            _lock(self._descriptor, time.monotonic() + patience_s)
        except OSError as error:
            self.release()
            busy = isinstance(error, BlockingIOError)
            why = "another process is writing there; wait for it or stop it" if busy else str(error)
            raise RunFolderError(f"{folder} cannot be locked: {why}") from error
        self._forget_in_forked_children()

    def release(self) -> None:
        """Give the lock up; again is fine."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _forget_in_forked_children(self) -> None:
        """A forked worker shares the lock, and would keep it if it outlived a killed parent; so it lets go at once."""
        me = weakref.ref(self)

        def let_go() -> None:
            lock = me()
            if lock is not None:
                lock.release()

        os.register_at_fork(after_in_child=let_go)


def _lock(descriptor: int, until_s: float) -> None:
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                raise
            time.sleep(0.2)
