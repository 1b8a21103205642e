"""Checksums by which a run folder knows that its files are as they were written.

The manifest carries one of itself and, when a run has ended, those of its tables and model. Whoever changes a manifest
on purpose takes the line "sha256" out; that of an older version has none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import RunFolderError
from fedbalancer.core.files import readable

SEAL, FILES = "sha256", "files"
"""The fields of a manifest: the checksum of all the others, and checksums by the name of a file."""
MAY_CHANGE = ("rounds", "budget_s", "target", "backend", "device")
"""What of a spec another may be given to a run that goes on."""


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with its checksum."""
    plain = {key: value for key, value in readable(dict(content)).items() if key != SEAL}
    return {**plain, SEAL: _digest(plain)}


def is_unchanged(content: Mapping[str, Any]) -> bool:
    """Whether a content that was sealed is still what it was; True of one that never was."""
    return SEAL not in content or content[SEAL] == sealed(content)[SEAL]


def checksums(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Of those files that are there."""
    return {name: _of_file(folder / name) for name in names if (folder / name).is_file()}


def damaged(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """The files that are not as the manifest says they were when the run ended."""
    known = manifest.get(FILES)
    known = known if isinstance(known, Mapping) else {}
    return [name for name, digest in known.items() if checksums(folder, [name]).get(name) != digest]


def identity(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What of a run stays as it is for all its life, and a checkpoint therefore remembers."""
    spec = manifest.get("spec")
    return {key: value for key, value in spec.items() if key not in MAY_CHANGE} if isinstance(spec, Mapping) else {}


def check_identity(remembered: Mapping[str, Any], manifest: Mapping[str, Any], place: Path) -> None:
    """Refuse to go on from the checkpoint of one run with the manifest of another."""
    now = identity(manifest)
    for key in remembered.keys() & now.keys():
        if remembered[key] != now[key]:
            raise RunFolderError(
                f"{place} says {key} = {now[key]!r}, but its checkpoint is of a run with {remembered[key]!r}; put that "
                "back, or start again with --overwrite"
            )


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
