"""Checksums of sources, computed once and remembered while the files stay as they are."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from fedbalancer.files import write_text
from fedbalancer.places import cache_folder


def checksum(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of a folder's files; remembered while size and times stay."""
    if not path.is_dir():
        return _remembered([path], path) or _remember([path], path, _digest(path))
    files = sorted(file for file in path.rglob("*") if file.is_file())
    known = _remembered(files, path)
    if known is not None:
        return known
    parts = [(file.relative_to(path).as_posix(), _digest(file)) for file in files]
    return _remember(files, path, hashlib.sha256(json.dumps(parts).encode()).hexdigest())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _note(files: Sequence[Path], path: Path) -> Path:
    """Where the checksum of these files, as they are now, is remembered: one note for a folder, however many files.

    The time of the last change of the inode is looked at as well: a copy that kept its date is another file.
    """
    seen = hashlib.sha256(str(path.resolve()).encode())
    for file in files:
        stat = file.stat()
        state = [str(file), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
        seen.update(json.dumps(state).encode())
    return cache_folder() / "checksums" / seen.hexdigest()[:32]


def _remembered(files: Sequence[Path], path: Path) -> str | None:
    try:
        known = _note(files, path).read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    return known if re.fullmatch("[0-9a-f]{64}", known) else None


def _remember(files: Sequence[Path], path: Path, digest: str) -> str:
    note = _note(files, path)
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        write_text(note, digest)
    except OSError:
        pass  # then it is computed again next time
    return digest
