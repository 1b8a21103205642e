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
"""Field "format" of a run's manifest. Other programs write files of the same name."""

MANIFEST, LOG, MODEL, CHECKPOINT = "manifest.json", "log.jsonl", "model.safetensors", "checkpoint"
BED = "bed.json"
KINDS = {BED: "a test bed", COMPARISON: "a comparison", MANIFEST: "a run"}
"""The file that identifies each kind of folder."""
POPULATION, CLASSES, PRIVACY = "population.parquet", "classes.parquet", "privacy.parquet"
SEALED = ("rounds.parquet", "evals.parquet", "clients.parquet", POPULATION, CLASSES, PRIVACY, MODEL)
"""Files whose checksums are in the manifest after the end of a run."""
RESULTS = (*SEALED, LOG)


def new_manifest(**fields: Any) -> dict[str, Any]:
    """Return the manifest of a new run: the given fields, the versions of relevant packages, and the time."""
    versions = {"python": platform.python_version()}
    for package in ("fedbalancer", "numpy", "torch", "polars"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {**fields, "versions": versions, "started": datetime.now(UTC).isoformat(timespec="seconds")}


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Return the events in the log of a run. Lines that are damaged or being written are left out.

    Args:
        folder: The run folder.
    """
    path = folder / LOG
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [event for line in lines if (event := _event(line)) is not None]


def _event(line: str) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
        datetime.fromisoformat(event["time"])
    except (ValueError, TypeError, KeyError):
        return None
    return event if isinstance(event.get("event"), str) else None


def read_status(path: Path) -> str:
    """Return the status of the run at `path`; "absent" if there is no run."""
    return str(read_manifest(path)["status"]) if (path / MANIFEST).is_file() else "absent"


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of the run at `path`.

    Raises:
        RunFolderError: If the manifest is missing or damaged.
    """
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
            f'{file} was damaged or changed after it was written; undo the change, or delete its "{SEAL}" to accept it'
        )
    return manifest


def check_free(path: Path, overwrite: bool, marker: str = MANIFEST) -> None:
    """Check that a new run, comparison or test bed may be written to a folder.

    Args:
        path: The folder.
        overwrite: Whether a folder of the same kind may be overwritten. Other folders never are, because a file in them
            may belong to someone else.
        marker: File that identifies the kind of the new folder.

    Raises:
        RunFolderError: If the folder may not be written.
    """
    check_path_name(path)
    if path.exists() and not path.is_dir():
        raise RunFolderError(f"{path} is a file, not a folder; choose another --out")
    names = sorted(name for name in os.listdir(path) if not _is_leftover(name)) if path.exists() else []
    if not names:
        return
    if marker not in names:
        others = f"other files ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
        content = next((kind for name, kind in KINDS.items() if name in names), others)
        raise RunFolderError(f"{path} holds {content}; choose another --out, or an empty folder")
    status = f" (status: {read_manifest(path).get('status', 'unknown')})" if marker == MANIFEST else ""
    if not overwrite:
        otherwise = f"continue it with: fedbalancer resume {path}" if marker != BED else "choose another --out"
        raise RunFolderError(
            f"{path} already holds {KINDS[marker]}{status}; replace it with --overwrite, or {otherwise}"
        )


def make_folder(path: Path) -> None:
    """Create the folder and its parents.

    Raises:
        RunFolderError: If the folder cannot be created.
    """
    check_path_name(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be created: {error}; choose another --out") from error


def refuse_links(folder: Path, *names: str) -> None:
    """Refuse symbolic links, because writing through them would change files elsewhere. `folder` itself may be a link.

    Args:
        folder: The folder.
        names: Files and folders in it; everything below these folders is checked too.

    Raises:
        RunFolderError: If there is a symbolic link.
    """
    for name in names:
        within = (Path(parent, each) for parent, folders, files in os.walk(folder / name) for each in folders + files)
        for path in chain([folder / name], within):
            if path.is_symlink():
                raise RunFolderError(f"{path} is a symbolic link to {os.readlink(path)}; replace it with its target")


def refuse_links_of_run(path: Path) -> None:
    """Refuse symbolic links among the files that a run writes."""
    refuse_links(path, LOCK, CHECKPOINT, *RESULTS)


def remove_run(path: Path) -> None:
    """Remove the files of a run except its manifest, which the caller then replaces.

    In this order, a checkpoint of the old run can never be used for the new run. Other files are kept.
    """
    checkpoint = path / CHECKPOINT
    if checkpoint.is_dir():
        shutil.rmtree(checkpoint)
    for name in RESULTS:
        (path / name).unlink(missing_ok=True)
    clean_temporaries(path)


def drop_torn_line(file: Path) -> None:
    """Remove an incomplete last line, which a power failure may leave."""
    if not file.exists():
        return
    data = file.read_bytes()
    if not data.endswith(b"\n"):
        os.truncate(file, data.rfind(b"\n") + 1)


def _is_leftover(name: str) -> bool:
    """Return whether a file is from a process that was killed before it wrote a manifest."""
    return name == LOCK or name.endswith(TEMPORARY_SUFFIX)


SEAL, FILES = "sha256", "files"
"""Fields of a manifest: the checksum of all other fields, and the checksums of files by name."""
MAY_CHANGE = ("rounds", "budget_s", "target", "backend", "device")
"""Fields of a spec that may differ when a run is resumed."""


def add_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content with its checksum."""
    plain = {key: value for key, value in readable(dict(content)).items() if key != SEAL}
    return {**plain, SEAL: _digest(plain)}


def is_unchanged(content: Mapping[str, Any]) -> bool:
    """Return whether the content matches its checksum; True if it has none."""
    return SEAL not in content or content[SEAL] == add_checksum(content)[SEAL]


def checksums(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the checksums of the files that exist, by name."""
    return {name: _hash_file(folder / name) for name in names if (folder / name).is_file()}


def find_damaged_files(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Return the files that do not match their checksum in the manifest."""
    files = manifest.get(FILES)
    files = files if isinstance(files, Mapping) else {}
    return [name for name, digest in files.items() if checksums(folder, [name]).get(name) != digest]


def identity(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a run's spec that may not change. A checkpoint stores them."""
    spec = manifest.get("spec")
    return {key: value for key, value in spec.items() if key not in MAY_CHANGE} if isinstance(spec, Mapping) else {}


def check_identity(saved: Mapping[str, Any], manifest: Mapping[str, Any], path: Path) -> None:
    """Check that a checkpoint belongs to the run of a manifest.

    Args:
        saved: Identity in the checkpoint.
        manifest: The manifest.
        path: Path of the manifest, for the error.

    Raises:
        RunFolderError: If the checkpoint belongs to another run.
    """
    current = identity(manifest)
    for key in saved.keys() & current.keys():
        if saved[key] != current[key]:
            raise RunFolderError(
                f"{path} has {key} = {current[key]!r}, but its checkpoint has {saved[key]!r}; restore the value, or "
                "start again with --overwrite"
            )


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
