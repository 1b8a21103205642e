"""One writer per folder: an advisory lock that the system releases when its holder ends, in whatever way."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout

from fedbalancer.core.errors import RunFolderError

LOCK = ".lock"


class FolderLock:
    """Lock on a folder, held from construction until `release`.

    Args:
        folder: Folder to lock. It must exist.
        patience_s: Seconds to wait for another holder.

    Raises:
        RunFolderError: The folder cannot be written, or another process still holds the lock after `patience_s`.
    """

    def __init__(self, folder: Path, patience_s: float = 0.0) -> None:
        if not folder.is_dir():
            raise RunFolderError(f"{folder} cannot be written to: it is not a folder")
        self._lock = FileLock(folder / LOCK, timeout=patience_s, mode=0o666, thread_local=False, fallback_to_soft=False)
        try:
            self._lock.acquire()
        except Timeout as error:
            raise RunFolderError(
                f"{folder} cannot be locked: another process is writing there; wait for it or stop it"
            ) from error
        except OSError as error:
            raise RunFolderError(f"{folder} cannot be written to: {error}") from error

    def release(self) -> None:
        """Release the lock. Calling it again has no effect."""
        self._lock.release()
