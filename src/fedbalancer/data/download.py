"""A file from the web: what has arrived is kept, and the next try goes on from there.

The bytes go into `NAME.part`. Beside it, `NAME.part.tag` says of which version of the remote file they are, so that a
file that was replaced in the meantime is fetched anew instead of being glued to the old beginning. Only when all of it
is there, its checksum is right (where one is known) and the disk has it, does it take its name.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from fedbalancer.errors import BadData, BadSetting, MissingData
from fedbalancer.files import sync_directory, write_text

Progress = Callable[[int, int | None], None]
"""Told how many bytes are there, and of how many if the server says so."""

TIMEOUT_S = 30.0
TRIES = 3
CHUNK_BYTES = 1 << 18
_PARTIAL, _NOT_SATISFIABLE = 206, 416


class Unreachable(MissingData):
    """A file that the network does not give; the message says why."""


class _Cut(Unreachable):
    """The connection was lost in the middle; what arrived is kept."""


def fetch(url: str, target: Path, sha256: str = "", progress: Progress = lambda done, total: None) -> None:
    """Fetch `url` to `target`, whose folder exists, and go on where an earlier try ended. A file that is there already
    is only checked. A lost connection is tried again, until `TRIES` in a row have brought nothing new."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise BadSetting(f"{url} cannot be fetched; an address starts with https:// or http://")
    if target.exists():
        _verify(url, target, sha256)
        return
    part = target.with_name(f"{target.name}.part")
    try:
        _receive_all(url, part, progress)
        _verify(url, part, sha256)
        os.replace(part, target)
        _tag(part).unlink(missing_ok=True)
        sync_directory(target.parent)
    except OSError as error:
        raise BadSetting(f"{target} cannot be written: {error}; set FEDBALANCER_DATA to a folder that can") from error


def _receive_all(url: str, part: Path, progress: Progress) -> None:
    most_bytes, without_news = _size(part), 0
    while True:
        try:
            _receive(url, part, progress)
        except _Cut:
            without_news = 0 if _size(part) > most_bytes else without_news + 1
            most_bytes = max(most_bytes, _size(part))
            if without_news >= TRIES:
                raise
        else:
            return


def _receive(url: str, part: Path, progress: Progress) -> None:
    """One request, from where we are to the end."""
    have_bytes = _size(part)
    tag, known_bytes = _known(part)
    response = _ask(url, have_bytes, tag)
    if response is None:  # there is nothing after what we have
        return
    with response:
        goes_on = response.status == _PARTIAL
        have_bytes = have_bytes if goes_on else 0
        total_bytes = _total(response, have_bytes)
        if goes_on and (_starts_at(response) != have_bytes or known_bytes != str(total_bytes)):
            _forget(part)
            raise _Cut(f"{url} is no longer the file of which a part has arrived")
        if not goes_on:
            _forget(part)  # in this order, so that no beginning ever stands beside the tag of another version
            write_text(_tag(part), f"{_version(response)}\n{total_bytes}")
        with part.open("ab" if goes_on else "wb") as file:
            try:
                have_bytes = _copy(url, response, file, have_bytes, total_bytes, progress)
            finally:
                file.flush()
                os.fsync(file.fileno())
    if total_bytes is not None and have_bytes != total_bytes:
        raise _Cut(f"{url} broke off after {have_bytes:,} of {total_bytes:,} bytes")


def _copy(url: str, response: Any, file: Any, have_bytes: int, total_bytes: int | None, progress: Progress) -> int:
    progress(have_bytes, total_bytes)
    while True:
        try:
            chunk = response.read1(CHUNK_BYTES)
        except (OSError, HTTPException) as error:
            raise _Cut(f"{url} broke off after {have_bytes:,} bytes: {error or type(error).__name__}") from error
        if not chunk:
            return have_bytes
        file.write(chunk)
        have_bytes += len(chunk)
        progress(have_bytes, total_bytes)


def _ask(url: str, have_bytes: int, tag: str) -> Any:
    """The answer of the server; None if it says that there is nothing after what we have."""
    headers = {"User-Agent": "fedbalancer", "Accept-Encoding": "identity"}
    if have_bytes:
        headers["Range"] = f"bytes={have_bytes}-"
        headers |= {"If-Range": tag} if tag else {}
    try:
        return urlopen(Request(url, headers=headers), timeout=TIMEOUT_S)
    except HTTPError as error:
        with error:
            ends_at = (error.headers.get("Content-Range") or "").rpartition("/")[2]
            if have_bytes and error.code == _NOT_SATISFIABLE:
                if ends_at == str(have_bytes):
                    return None
                return _ask(url, 0, "")  # what we have is longer than the file: begin anew
            raise Unreachable(f"{url} answers {error.code} {error.reason}") from error
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise Unreachable(f"{url} cannot be reached: {reason or type(error).__name__}") from error


def _verify(url: str, path: Path, sha256: str) -> None:
    """A file with the wrong content is removed: going on from it would never end well."""
    if not sha256:
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256.lower():
        _forget(path)
        raise BadData(f"{url} has the checksum {found}, but {sha256} is expected; it was removed: try again")


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _tag(part).unlink(missing_ok=True)


def _version(response: Any) -> str:
    """What tells one version of the remote file from the next, if the server says; a weak tag does not."""
    etag = response.headers.get("ETag") or ""
    return etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified") or ""


def _starts_at(response: Any) -> int | None:
    first = (response.headers.get("Content-Range") or "").removeprefix("bytes ").partition("-")[0]
    return int(first) if first.isdecimal() else None


def _total(response: Any, have_bytes: int) -> int | None:
    """Bytes of the whole file, if the server says."""
    length = response.headers.get("Content-Length") or ""
    return have_bytes + int(length) if length.isdecimal() else None


def _tag(part: Path) -> Path:
    return part.with_name(f"{part.name}.tag")


def _known(part: Path) -> tuple[str, str]:
    """Version and size of the remote file that the part is of."""
    if not _tag(part).exists():
        return "", ""
    version, _, total = _tag(part).read_text(encoding="utf-8").rpartition("\n")
    return version, total


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0
