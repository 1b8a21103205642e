"""Tasks from arrays, `.npz` files and folders of `.npz` files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, BadSetting, UnknownName
from fedbalancer.core.samples import Ragged, as_features, as_labels, check_part, columns_of, count_rows, take
from fedbalancer.core.task import TEST, Samples, check_samples, check_shapes
from fedbalancer.data.clients import concatenate_users, hold_out_tests
from fedbalancer.data.own.models import Model, convert_features, is_built_in, make_factory
from fedbalancer.data.own.options import (
    OwnOptions,
    check_options,
    draw_test_users,
    split_notes,
    split_options,
    split_rows,
)
from fedbalancer.data.readers import load_npz
from fedbalancer.data.task import Task


def from_table(
    samples: Samples,
    users: NDArray[Any] | None,
    test: Samples | None,
    model: Model,
    classes: int | None,
    split: Mapping[str, Any],
    settings: Mapping[str, Any],
    where: str,
) -> Task:
    """Build a task from a table of samples.

    Args:
        samples: Features and labels, one row per sample.
        users: User of every row. None: the samples are partitioned.
        test: Test data. None: a share of the table is held out.
        model: Name, options or factory of the model.
        classes: Number of classes. None: from the labels.
        split: Options of the split.
        settings: Settings of the task.
        where: Name of the table, for errors.
    """
    features, labels = samples
    check_table(features, labels, users, where)
    if test is not None:
        check_table(*test, None, TEST)
    rows = split_rows(np.asarray(labels), users, split, test is not None, where)
    if test is None:
        assert rows.test is not None
        test = take(features, rows.test), labels[rows.test]
    clients = {client: (take(features, chosen), labels[chosen]) for client, chosen in rows.clients.items()}
    notes = {"source": where, **split_notes(split, rows.held_out, users is not None, rows.test is None)}
    return add_client_tests(assemble(clients, test, model, classes, settings, notes), split)


def add_client_tests(task: Task, split: Mapping[str, Any]) -> Task:
    """Hold out the tests of clients, if the options of the split ask for them.

    Args:
        task: The task.
        split: Options of the split.
    """
    share = split.get("client_test_share")
    return task if share is None else hold_out_tests(task, share, split.get("seed", 0))


def as_samples(samples: Any, where: str) -> Samples:
    """Return features and labels as arrays.

    Args:
        samples: Pair (features, labels).
        where: Name of the data, for errors.

    Raises:
        BadData: If it is not a pair of arrays, or the features are not numbers.
    """
    try:
        features, labels = samples
        features = as_features(features)
        labels = as_labels(labels, count_rows(features))
    except (TypeError, ValueError, BadData) as error:
        raise BadData(
            f"{where} must be (features, labels), two arrays of the same length; all samples must have the same shape"
        ) from error
    for column in (*columns_of(features).values(), labels):
        if np.ndim(column) == 0:
            raise BadData(f"{where} must be (features, labels), two arrays with one row per sample, not single values")
    for column in columns_of(features).values():
        kind = column.values.dtype if isinstance(column, Ragged) else column.dtype
        if kind.kind not in "iubf":
            raise BadData(f"{where} has features of type {kind}; they must be numbers")
    return features, labels


def check_table(features: Any, labels: Any, users: NDArray[Any] | None, where: str) -> None:
    """Check the whole table, so that errors name its rows.

    Raises:
        BadData: If lengths differ, there are no samples, or a feature is NaN or infinite.
    """
    rows = count_rows(features)
    if rows != len(labels):
        raise BadData(f"{where} has {rows} rows of features but {len(labels)} labels")
    if len(labels) == 0:
        raise BadData(f"{where} has no samples")
    if not isinstance(features, np.ndarray):
        check_part(features, where, "feature")
    elif features.dtype.kind == "f":
        bad = np.flatnonzero(~np.isfinite(features.reshape(len(features), -1)).all(axis=1))
        if len(bad):
            whose = f" (user {str(users[bad[0]])!r})" if users is not None and len(users) == len(labels) else ""
            raise BadData(f"{where} has a NaN or infinite feature in row {bad[0]}{whose}")


TEST_FILE = "test.npz"
OPTIONS = ("test_share", "client_test_share", "seed")


def from_folder(path: Path | str, *, model: Model, classes: int | None = None, **options: Unpack[OwnOptions]) -> Task:
    """Build a task from a folder. See `Task.from_folder`."""
    split, settings = split_options(options, OPTIONS)
    folder = Path(path)
    files = sorted(folder.glob("*.npz"))
    if not folder.is_dir():
        raise BadData(f"the folder {folder} does not exist")
    has_test = (folder / TEST_FILE).is_file()
    check_options(split, has_users=True, has_test=has_test)
    users = {file.stem: read_client(file) for file in files if file.name != TEST_FILE}
    if not users:
        raise BadData(f"{folder} has no clients: it must contain one .npz file per client, with arrays x and y")
    places = {user: f" ({user}.npz)" for user in users}
    check_shapes({f"client {user!r}{places[user]}": samples for user, samples in users.items()})
    held_out = () if has_test else draw_test_users(list(users), split, str(folder))
    if has_test:
        test = read_client(folder / TEST_FILE)
    else:
        _, _, *both = concatenate_users({user: users[user] for user in held_out})
        test = (both[0], both[1])
    clients = {user: samples for user, samples in users.items() if user not in set(held_out)}
    notes = {"source": str(folder), **split_notes(split, held_out, has_users=True, has_test=has_test)}
    settings.setdefault("name", folder.resolve().name)
    return add_client_tests(assemble(clients, test, model, classes, settings, notes, places), split)


def read_client(file: Path) -> Samples:
    """Read and check the arrays x and y of one file."""
    arrays = NpzFile(file)
    samples = as_samples((arrays["x"], arrays["y"]), str(file))
    check_samples(samples, str(file), None)
    return samples


class NpzFile(dict[str, NDArray[Any]]):
    """The arrays of one file by name. The error for a missing name suggests the nearest one."""

    def __init__(self, path: Path) -> None:
        super().__init__(load_npz(path))
        self.path = path

    def __missing__(self, name: str) -> NDArray[Any]:
        raise UnknownName(f"array in {self.path}", name, self)


def from_npz(
    path: Path | str,
    *,
    model: Model,
    features: str = "x",
    label: str = "y",
    user: str | None = None,
    classes: int | None = None,
    **options: Unpack[OwnOptions],
) -> Task:
    """Build a task from one `.npz` file with all samples.

    Args:
        path: The file. Test data are in the arrays `x_test` and `y_test`, if there are any.
        model: See `Task.from_arrays`.
        features: Name of the array of features.
        label: Name of the array of labels.
        user: Name of the array of users. Default: `users`, if it exists.
        classes: Number of classes. Default: from the labels.
        **options: Options of the split and settings of the task.
    """
    split, settings = split_options(options)
    arrays = NpzFile(Path(path))
    if user is None and "partition" not in split and "users" in arrays:
        user = "users"
    has_test = f"{features}_test" in arrays or f"{label}_test" in arrays
    return from_table(
        as_samples((arrays[features], arrays[label]), str(path)),
        arrays[user] if user is not None else None,
        as_samples((arrays[f"{features}_test"], arrays[f"{label}_test"]), f"the test data of {path}")
        if has_test
        else None,
        model,
        classes,
        split,
        {"name": Path(path).stem, **settings},
        str(path),
    )


def assemble(
    clients: Mapping[str, Samples],
    test: Samples,
    model: Model,
    classes: int | None,
    settings: Mapping[str, Any],
    notes: Mapping[str, Any],
    places: Mapping[str, str] | None = None,
) -> Task:
    """Build a task from the samples of every client: the steps that all kinds of data share.

    Args:
        clients: Samples by client.
        test: Test data.
        model: Name, options or factory of the model.
        classes: Number of classes. None: from the labels.
        settings: Settings of the task.
        notes: Facts about the data.
        places: Origin of a client's data, for errors.
    """
    places = places if places is not None else {}
    parts = {f"client {client!r}{places.get(client, '')}": samples for client, samples in clients.items()}
    parts[TEST] = test
    check_shapes(parts)
    labels, names = number_labels([(where, y) for where, (_, y) in parts.items()], callable(settings.get("loss")))
    count = count_classes(list(zip(parts, labels, strict=True)), classes)
    features = [x for x, _ in parts.values()]
    for where, x, y in zip(parts, features, labels, strict=True):
        check_samples((x, y), where, count)
    if not isinstance(features[0], np.ndarray) and is_built_in(model):
        raise BadSetting("a model by name takes one array of features; give a function that returns the model")
    factory = make_factory(model, features, count)
    samples = [(convert_features(factory, x), y) for x, y in zip(features, labels, strict=True)]
    settings = {"clients_per_round": min(10, len(clients)), **settings}
    notes = {**notes, **({"labels": names} if names else {})}
    by_client = dict(zip(clients, samples[:-1], strict=True))
    return Task(by_client, samples[-1], factory, classes=count, notes=notes, **settings)


MOST_CLASSES = 65_536
"""Largest number of classes that is read from labels: a column of ids, used by mistake, would give a huge model."""

LabelPart = tuple[str, Any]
"""The origin of labels, and the labels."""


def number_labels(parts: Sequence[LabelPart], keep_floats: bool) -> tuple[list[Any], list[str]]:
    """Convert labels to class numbers.

    Args:
        parts: Origin and labels of every part.
        keep_floats: Whether floats stay floats, for a custom loss. Otherwise whole floats become integers.

    Returns:
        The class numbers of every part, and the class names in alphabetical order if the labels are text.

    Raises:
        BadData: If the labels are not whole numbers or text, or parts differ.
    """
    if any(isinstance(labels, Ragged) or (labels.ndim == 2 and not labels.shape[1]) for _, labels in parts):
        return [labels for _, labels in parts], []  # lists of labels, or none
    arrays = [(where, _check_type(where, labels)) for where, labels in parts]
    text = [array.dtype.kind == "U" for _, array in arrays]
    if all(text):
        names = np.unique(np.concatenate([array.reshape(-1) for _, array in arrays]))
        return [np.searchsorted(names, array) for _, array in arrays], names.tolist()
    if any(text):
        odd = text.index(not text[0])
        kinds = ("text", "numbers") if text[odd] else ("numbers", "text")
        raise BadData(f"labels of {arrays[odd][0]} are {kinds[0]}, but those of {arrays[0][0]} are {kinds[1]}")
    floats = keep_floats and any(array.dtype.kind == "f" for _, array in arrays)
    return [array if floats else _as_integers(where, array) for where, array in arrays], []


def count_classes(parts: Sequence[LabelPart], given: int | None) -> int | None:
    """Return the number of classes.

    Args:
        parts: Origin and labels of every part.
        given: Number that the user gave. None: one more than the highest label.

    Returns:
        The number, or None if the labels are not classes.
    """
    if given is not None:
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise BadSetting(f"classes = {given!r} must be a whole number of at least 1")
        return given
    parts = [(where, np.asarray(labels)) for where, labels in parts]
    if any(labels.dtype.kind not in "iu" for _, labels in parts):
        return None
    top = max(int(labels.max()) for _, labels in parts)
    if top >= MOST_CLASSES:
        where, labels = next((where, labels) for where, labels in parts if labels.max() == top)
        raise BadData(
            f"{where} has label {top} in sample {int(labels.argmax())}; labels must be 0, 1, 2, ... or text; if there "
            "are that many classes, set classes"
        )
    return top + 1


def _check_type(where: str, labels: NDArray[Any]) -> NDArray[Any]:
    array = np.asarray(labels)
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8")
    if array.dtype.kind == "O":
        odd = [row for row, value in enumerate(array.tolist()) if not isinstance(value, str)]
        if odd:
            raise BadData(f"{where} has label {array[odd[0]]!r} in sample {odd[0]}; labels must be numbers or text")
        return array.astype(str)
    if array.dtype.kind not in "iubfU":
        raise BadData(f"{where} has labels of type {array.dtype}; they must be whole numbers or text")
    return array


def _as_integers(where: str, labels: NDArray[Any]) -> NDArray[np.int64]:
    if labels.dtype.kind == "f":
        odd = np.flatnonzero(~(np.isfinite(labels) & (labels == np.floor(labels))))
        if len(odd):
            raise BadData(
                f"{where} has label {labels.flat[odd[0]]} in sample {odd[0]}; labels must be whole numbers or text, "
                "unless the task has a custom loss"
            )
    return labels.astype(np.int64)
