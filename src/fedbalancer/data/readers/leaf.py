"""Data as LEAF's scripts write it: JSON files with users, the number of samples of each, and their x and y.

    {"users": ["ann"], "num_samples": [2], "user_data": {"ann": {"x": [..., ...], "y": [0, 1]}}}

LEAF (S. Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018) puts them into the folders `train`, `test` and
for Reddit `val`. What x and y hold is up to the task. Users that stand in `user_data` but not in `users` are left out:
LEAF's split by sample leaves such empty shells behind.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, MissingData
from fedbalancer.data.cache import checksum

PARTS = ("train", "val", "test")


class LeafUser(NamedTuple):
    """One user of one file, as the JSON has it."""

    name: str
    x: list[Any]
    y: list[Any]
    file: Path

    @property
    def where(self) -> str:
        """How an error names this user."""
        return f"{self.file}: user {self.name!r}"


def leaf_files(folder: Path) -> dict[str, tuple[Path, ...]]:
    """The JSON files of each part: those in `train`, `val` and `test` of the folder or of its subfolder `data`; if
    there is no `train`, those of the folder itself, all as `train`."""
    for base in (folder, folder / "data"):
        if (base / "train").is_dir():
            files = {part: tuple(sorted((base / part).glob("*.json"))) for part in PARTS}
            break
    else:
        files = {"train": tuple(sorted(folder.glob("*.json"))), "val": (), "test": ()}
    if not files["train"]:
        raise MissingData(
            f"{folder} has no LEAF data; it needs train/*.json and test/*.json, or *.json without a split"
        )
    return files


def leaf_checksums(files: Mapping[str, Iterable[Path]]) -> dict[str, list[str]]:
    """What a cache entry made from these files depends on."""
    return {part: [checksum(path) for path in paths] for part, paths in files.items()}


def leaf_users(files: Iterable[Path], exact_counts: bool = True) -> Iterator[LeafUser]:
    """The users of one part, one file in memory at a time; what is wrong is a `BadData` that names file and user.

    `exact_counts` wants num_samples to be the number of samples; in LEAF's Reddit it is another number.
    """
    seen: dict[str, Path] = {}
    for file in files:
        for user in _users_of(file, exact_counts):
            if user.name in seen:
                raise BadData(f"{user.where} occurs twice, also in {seen[user.name]}; a user must be in one place")
            seen[user.name] = file
            yield user


def class_labels(user: LeafUser, classes: int) -> NDArray[np.int64]:
    """The user's labels; whole numbers may be written as floats, as LEAF does for CelebA."""
    for index, label in enumerate(user.y):
        if not _is_class(label, classes):
            raise BadData(f"{user.where}, sample {index}: label {label!r}; labels must be 0 to {classes - 1}")
    return np.array(user.y, dtype=np.int64)


def _is_class(label: Any, classes: int) -> bool:
    return isinstance(label, int | float) and label in range(classes)


def _users_of(file: Path, exact_counts: bool) -> Iterator[LeafUser]:
    document = _document(file)
    names, counts, data = document["users"], document["num_samples"], document["user_data"]
    if len(names) != len(counts):
        raise BadData(
            f"{file}: {len(names)} users, but num_samples has {len(counts)} entries; there must be one for each"
        )
    for index, (name, count) in enumerate(zip(names, counts, strict=True)):
        where = f"{file}: user {name!r} (number {index})"
        samples = data.get(name) if isinstance(name, str) else None
        if not isinstance(samples, dict) or not all(isinstance(samples.get(key), list) for key in ("x", "y")):
            raise BadData(f"{where} needs an entry in user_data with the lists x and y")
        user = LeafUser(name, samples["x"], samples["y"], file)
        _check_lengths(where, user, count if exact_counts else len(user.y))
        yield user


def _document(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_bytes(), object_pairs_hook=_no_key_twice)
    except (ValueError, RecursionError) as error:  # bytes that are no text are a ValueError too
        reason = " ".join(str(error).split())
        raise BadData(f"{file} is damaged or no JSON ({reason}); fetch or make it again") from error
    kinds = {"users": list, "num_samples": list, "user_data": dict}
    for key, kind in kinds.items():
        if not isinstance(document, dict) or not isinstance(document.get(key), kind):
            named = "list" if kind is list else "object"
            raise BadData(f"{file} has no {named} {key!r}; LEAF's JSON has users, num_samples and user_data")
    return dict(document)


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a user that stands twice in one file, the JSON reader would quietly drop the first."""
    entries = dict(pairs)
    if len(entries) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{next(key for key in keys if keys.count(key) > 1)!r} occurs twice")
    return entries


def _check_lengths(where: str, user: LeafUser, count: Any) -> None:
    if len(user.x) != len(user.y):
        first = min(len(user.x), len(user.y))
        lacks = "label" if len(user.y) == first else "features"
        raise BadData(f"{where} has {len(user.x)} x but {len(user.y)} y: sample {first} has no {lacks}")
    if not user.y:
        raise BadData(f"{where} has no samples; leave the user out or give it at least one")
    if count != len(user.y):
        raise BadData(f"{where} has {len(user.y)} samples, but num_samples says {count!r}")
