"""Readers of data sets for the built-in tasks: JSON of LEAF, JSON lines, `.npz` files, and splits by user.

The readers check every value and execute nothing in the files.

A JSON file of LEAF has users, the number of samples of each, and their x and y:

    {"users": ["ann"], "num_samples": [2], "user_data": {"ann": {"x": [..., ...], "y": [0, 1]}}}

LEAF (S. Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018) writes them to the folders `train`, `test`
and, for Reddit, `val`. The content of x and y depends on the task. Users in `user_data` that are not in `users` are
ignored: LEAF's split by sample leaves such empty entries.
"""

from __future__ import annotations

import json
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, MissingData
from fedbalancer.core.randomness import stream
from fedbalancer.core.task import Samples
from fedbalancer.data.cache import Prepared, checksum
from fedbalancer.data.clients import SlicedClients, check_user_count, concatenate_users

PARTS = ("train", "val", "test")


class LeafUser(NamedTuple):
    """One user of one file.

    Args:
        name: Id of the user.
        x: Features, as in the JSON.
        y: Labels, as in the JSON.
        file: The file.
    """

    name: str
    x: list[Any]
    y: list[Any]
    file: Path

    @property
    def where(self) -> str:
        """Name of the user in errors."""
        return f"{self.file}: user {self.name!r}"


def leaf_files(folder: Path) -> dict[str, tuple[Path, ...]]:
    """Return the JSON files of each part.

    They are in `train`, `val` and `test` of the folder or of its subfolder `data`. Without a folder `train`, all files
    of the folder itself are training data.

    Raises:
        MissingData: If there are no training data.
    """
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
    """Return the checksums of all files, for the key of a cache entry."""
    return {part: [checksum(path) for path in paths] for part, paths in files.items()}


def leaf_users(files: Iterable[Path], exact_counts: bool = True) -> Iterator[LeafUser]:
    """Yield the users of one part, with one file in memory at a time.

    Args:
        files: The files.
        exact_counts: Whether num_samples must be the number of samples. In LEAF's Reddit data it is another number.

    Raises:
        BadData: If a file is damaged or a user is invalid.
    """
    seen: dict[str, Path] = {}
    for file in files:
        for user in _read_users(file, exact_counts):
            if user.name in seen:
                raise BadData(f"{user.where} occurs twice, also in {seen[user.name]}; a user must be in one place")
            seen[user.name] = file
            yield user


def class_labels(user: LeafUser, classes: int) -> NDArray[np.int64]:
    """Return the labels of a user. Whole numbers may be written as floats, as LEAF does for CelebA.

    Args:
        user: The user.
        classes: Number of classes.

    Raises:
        BadData: If a label is not a class.
    """
    for index, label in enumerate(user.y):
        if not _is_class(label, classes):
            raise BadData(f"{user.where}, sample {index}: label {label!r}; labels must be 0 to {classes - 1}")
    return np.array(user.y, dtype=np.int64)


def _is_class(label: Any, classes: int) -> bool:
    return isinstance(label, int | float) and label in range(classes)


def _read_users(file: Path, exact_counts: bool) -> Iterator[LeafUser]:
    document = _read_document(file)
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


def _read_document(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_bytes(), object_pairs_hook=_refuse_repeated_keys)
    except (ValueError, RecursionError) as error:  # includes bytes that are not text
        reason = " ".join(str(error).split())
        raise BadData(f"{file} is damaged or not JSON ({reason}); download or create it again") from error
    kinds = {"users": list, "num_samples": list, "user_data": dict}
    for key, kind in kinds.items():
        if not isinstance(document, dict) or not isinstance(document.get(key), kind):
            json_type = "list" if kind is list else "object"
            raise BadData(f"{file} has no {json_type} {key!r}; LEAF's JSON has users, num_samples and user_data")
    return dict(document)


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a repeated key, of which the JSON reader would silently drop the first."""
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
        raise BadData(f"{where} has no samples; remove the user or add a sample")
    if count != len(user.y):
        raise BadData(f"{where} has {len(user.y)} samples, but num_samples says {count!r}")


def load_npz(path: Path, names: Iterable[str] | None = None) -> dict[str, NDArray[Any]]:
    """Read arrays of an `.npz` file, without unpickling.

    Args:
        path: The file.
        names: Names of the arrays. None: all.

    Raises:
        BadData: If the file is missing or damaged, or lacks an array.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in (file.files if names is None else names)}
    except FileNotFoundError as error:
        raise BadData(f"the file {path} does not exist") from error
    except KeyError as error:
        raise BadData(f"{path} lacks an array: {error.args[0]}") from error
    except (ValueError, OSError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        reason = " ".join(str(error).split()) if zipfile.is_zipfile(path) else "numpy.savez writes such files"
        raise BadData(f"{path} is damaged or not an .npz file of plain arrays: {reason}") from error


def read_npz(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[Any]]:
    """Read arrays with one row per sample.

    Args:
        path: The file.
        shapes: Required shape of a row, by the name of the array.

    Raises:
        BadData: If the file cannot be read, a shape is wrong, or there are no samples.
    """
    arrays = load_npz(path, shapes)
    rows = len(next(iter(arrays.values())))
    for name, shape in shapes.items():
        if arrays[name].shape != (rows, *shape):
            raise BadData(f"{path}: array {name!r} has shape {arrays[name].shape}; it must be {(rows, *shape)}")
    if not rows:
        raise BadData(f"{path} has no samples")
    return arrays


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of an xz-compressed file with one JSON object per line.

    Raises:
        BadData: If the file is damaged.
    """
    number = 1
    try:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise ValueError(f"a {type(record).__name__} instead of an object")
                yield record
                number += 1
    except (ValueError, EOFError, lzma.LZMAError) as error:
        reason = " ".join(str(error).split())
        raise BadData(f"{path}, line {number}: not complete JSON ({reason}); get the file again") from error


class UserSplit(NamedTuple):
    """Samples by user.

    Args:
        train: Training samples.
        test: Test samples.
    """

    train: Mapping[str, Samples]
    test: Mapping[str, Samples]


def split_by_user(names: Sequence[str], train_share: float = 0.9, seed: int = 0) -> tuple[list[str], list[str]]:
    """Split users into training and test users by LEAF's rule.

    Args:
        names: All users.
        train_share: Share of training users, rounded down.
        seed: Seed of the draw.

    Returns:
        Training users and test users.

    >>> train, test = split_by_user([f"user{k}" for k in range(55)])
    >>> len(train), len(test)
    (49, 6)
    """
    if len(names) < 2:
        raise BadData(f"a split by user needs at least 2 users, not {len(names)}")
    count = min(max(1, int(train_share * len(names))), len(names) - 1)
    chosen = set(stream(seed, "split by user").permutation(len(names))[:count].tolist())
    train = [name for row, name in enumerate(names) if row in chosen]
    return train, [name for row, name in enumerate(names) if row not in chosen]


def hold_out(users: Mapping[str, Samples]) -> UserSplit:
    """Split users and their samples into training and test users.

    Args:
        users: Samples by user.
    """
    train, test = split_by_user(list(users))
    return UserSplit({name: users[name] for name in train}, {name: users[name] for name in test})


def from_leaf(files: Mapping[str, Iterable[Path]], samples_of: Callable[[LeafUser], Samples]) -> UserSplit:
    """Read the users of LEAF's files, in LEAF's split. Without test files, 10% of the users become test users.

    Args:
        files: Files of each part.
        samples_of: Function that converts one user to arrays.
    """
    train, test = ({user.name: samples_of(user) for user in leaf_users(files[part])} for part in ("train", "test"))
    return UserSplit(train, test) if test else hold_out(train)


def pack(split: UserSplit) -> Prepared:
    """Convert a split for the cache, with the users in random order, so that the first ones are a random choice."""
    arrays, meta = {}, {}
    for part, users in split._asdict().items():
        order = stream(0, "order of users").permutation(len(users))
        pairs = [list(users.items())[row] for row in order]
        names, lengths, arrays[f"{part}_x"], arrays[f"{part}_y"] = concatenate_users(pairs)
        meta[part] = {"names": names, "lengths": lengths}
    return Prepared(arrays, meta)


def unpack(
    prepared: Prepared, users: int | None, most: int | None = None, test_users: int | None = None
) -> tuple[SlicedClients, Samples]:
    """Return training clients and test samples from the cache.

    Args:
        prepared: Data of the cache.
        users: Number of training clients. None: at most `most`.
        most: Largest default number of training clients. None: all.
        test_users: Largest number of test users. None: all.
    """
    names, lengths = prepared.meta["train"]["names"], prepared.meta["train"]["lengths"]
    users = len(names[:most]) if users is None else check_user_count(users, len(names), "the data")
    train = _take_users(prepared, "train", users)
    return SlicedClients(tuple(names[:users]), tuple(lengths[:users]), *train), _take_users(
        prepared, "test", test_users
    )


def _take_users(prepared: Prepared, part: str, users: int | None) -> Samples:
    end = int(np.sum(prepared.meta[part]["lengths"][:users]))
    return prepared.arrays[f"{part}_x"][:end], prepared.arrays[f"{part}_y"][:end]


def shrink_images(images: NDArray[Any], every: int) -> NDArray[Any]:
    """Average squares of `every` x `every` pixels of square images (n, channels, side, side)."""
    if every == 1:
        return images
    channels, side = images.shape[1], images.shape[2] // every
    pixels = images.reshape(-1, channels, side, every, side, every)
    return np.asarray(pixels.mean(axis=(3, 5)), dtype=images.dtype)
