"""The files of a run folder: their names, the manifest, checksums, and checks before a new run is written.

The manifest contains its own checksum ("sha256") and, after the end of the run, the checksums of the tables and the
model. To change a manifest on purpose, delete its "sha256".
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import RunFolderError
from fedbalancer.core.files import LOCK, TEMPORARY_SUFFIX, check_path_name, clean_temporaries, readable
from fedbalancer.store.comparison import COMPARISON

FORMAT = "fedbalancer run 1"
"""What the manifest of a run says under "format"; other programs write files of the same name."""

MANIFEST, LOG, MODEL, CHECKPOINT = "manifest.json", "log.jsonl", "model.safetensors", "checkpoint"
BED = "bed.json"
KINDS = {BED: "a test bed", COMPARISON: "a comparison", MANIFEST: "a run"}
"""The file by which each kind of folder is known."""
POPULATION, CLASSES, PRIVACY = "population.parquet", "classes.parquet", "privacy.parquet"
SEALED = ("rounds.parquet", "evals.parquet", "clients.parquet", POPULATION, CLASSES, PRIVACY, MODEL)
"""Files whose checksums the manifest has when a run has ended."""
RESULTS = (*SEALED, LOG)


def new_manifest(**fields: Any) -> dict[str, Any]:
    """The manifest of a run that starts now: these fields, the versions of what a result depends on, and the time."""
    versions = {"python": platform.python_version()}
    for package in ("fedbalancer", "numpy", "torch", "polars"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {**fields, "versions": versions, "started": datetime.now(UTC).isoformat(timespec="seconds")}


def read_status(path: Path) -> str:
    """The status in the manifest of the run at `path`; "absent" if no run was ever started there."""
    return str(read_manifest(path)["status"]) if (path / MANIFEST).is_file() else "absent"


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of the run at `path`; a `RunFolderError` that names the file if there is none or it is damaged."""
    file = path / MANIFEST
    try:
        manifest = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RunFolderError(f"{path} is not a run folder: there is no {file}") from error
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{file} cannot be read: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise RunFolderError(f'{file} is not the manifest of a run: it needs the field "format": "{FORMAT}"')
    if not is_unchanged(manifest):
        raise RunFolderError(
            f'{file} was damaged or changed since it was written; undo that or, if it is meant, take out its "{SEAL}"'
        )
    return manifest


def check_free(path: Path, overwrite: bool, marker: str = MANIFEST) -> None:
    """Raise `RunFolderError` unless a new run, comparison or test bed, as `marker` says, may be written to `path`.

    Only a folder that holds the same kind of thing can be overwritten: in any other, a file with one of our names may
    be someone's.
    """
    check_path_name(path)
    if path.exists() and not path.is_dir():
        raise RunFolderError(f"{path} is a file, not a folder; choose another --out")
    found = sorted(name for name in os.listdir(path) if not _is_trace(name)) if path.exists() else []
    if not found:
        return
    if marker not in found:
        others = f"other files ({', '.join(found[:3])}{', ...' if len(found) > 3 else ''})"
        held = next((kind for name, kind in KINDS.items() if name in found), others)
        raise RunFolderError(f"{path} holds {held}; choose another --out, or an empty folder")
    status = f" (status: {read_manifest(path).get('status', 'unknown')})" if marker == MANIFEST else ""
    if not overwrite:
        otherwise = f"go on with: fedbalancer resume {path}" if marker != BED else "choose another --out"
        raise RunFolderError(
            f"{path} already holds {KINDS[marker]}{status}; replace it with --overwrite, or {otherwise}"
        )


def make_folder(path: Path) -> None:
    """Make the folder and those above it, or raise a `RunFolderError`."""
    check_path_name(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be made: {error}; choose another --out") from error


def refuse_links(folder: Path, *names: str) -> None:
    """Raise `RunFolderError` if one of these, or anything in one that is a folder, is a symbolic link: what is written
    there would replace or remove something elsewhere, and we never make any. The folder itself may be one."""
    for name in names:
        within = (Path(at, each) for at, folders, files in os.walk(folder / name) for each in folders + files)
        for path in chain([folder / name], within):
            if path.is_symlink():
                raise RunFolderError(f"{path} is a symbolic link to {os.readlink(path)}; put the thing itself there")


def refuse_links_of_run(path: Path) -> None:
    """The same for all that a run writes."""
    refuse_links(path, LOCK, CHECKPOINT, *RESULTS)


def remove_run(path: Path) -> None:
    """Remove our files but the manifest, which the caller replaces: at no time can a checkpoint of the old run be
    taken for one of the new. Files of others stay."""
    checkpoint = path / CHECKPOINT
    if checkpoint.is_dir():
        shutil.rmtree(checkpoint)
    for name in RESULTS:
        (path / name).unlink(missing_ok=True)
    clean_temporaries(path)


def drop_torn_line(file: Path) -> None:
    """Cut off an unfinished last line, which a power cut may leave, so that the file is JSON lines throughout."""
    if not file.exists():
        return
    data = file.read_bytes()
    if not data.endswith(b"\n"):
        os.truncate(file, data.rfind(b"\n") + 1)


def _is_trace(name: str) -> bool:
    """Whether a file is what a process leaves that was killed before it wrote a manifest."""
    return name == LOCK or name.endswith(TEMPORARY_SUFFIX)


SEAL, FILES = "sha256", "files"
"""The fields of a manifest: the checksum of all the others, and checksums by the name of a file."""
MAY_CHANGE = ("rounds", "budget_s", "target", "backend", "device")
"""What of a spec another may be given to a run that goes on."""


def add_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with its checksum."""
    plain = {key: value for key, value in readable(dict(content)).items() if key != SEAL}
    return {**plain, SEAL: _digest(plain)}


def is_unchanged(content: Mapping[str, Any]) -> bool:
    """Whether a content that was sealed is still what it was; True of one that never was."""
    return SEAL not in content or content[SEAL] == add_checksum(content)[SEAL]


def checksums(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Of those files that are there."""
    return {name: _of_file(folder / name) for name in names if (folder / name).is_file()}


def find_damaged_files(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
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
