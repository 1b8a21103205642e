"""Checksums of sources, computed once and remembered while the files stay as they are."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fedbalancer.core.files import write_text
from fedbalancer.core.paths import cache_folder


def checksum(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of a folder's files; remembered while size and times stay."""
    is_folder = path.is_dir()
    files = sorted(file for file in path.rglob("*") if file.is_file()) if is_folder else [path]
    note = _note(files, path)  # of before: a file that changes while it is read is not remembered under its new state
    known = ""
    with suppress(OSError):
        known = note.read_text(encoding="ascii", errors="replace")
    if re.fullmatch("[0-9a-f]{64}", known):
        return known
    parts = [(file.relative_to(path).as_posix(), digest(file)) for file in files]
    found = hashlib.sha256(json.dumps(parts).encode()).hexdigest() if is_folder else parts[0][1]
    with suppress(OSError):  # then it is computed again next time
        note.parent.mkdir(parents=True, exist_ok=True)
        write_text(note, found)
    return found


def digest(path: Path) -> str:
    """SHA-256 of a file as it is now."""
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
