"""Tasks in TOML files, as for `fedbalancer compare my_task.toml`.

name = "rooms"              # default: the name of the file
[data]
kind = "parquet"            # or "csv", "images", "folder", "npz", "huggingface"
path = "rooms.parquet"      # relative to this file, or absolute
user = "person"             # or: partition = "dirichlet", clients = 20, alpha = 0.5
label = "activity"
features = ["ax", "ay"]     # or one column of lists: "window"
test_share = 0.2            # or: test = "other.parquet"
[model]
name = "mlp"                # or cnn1d, cnn2d, lstm, or "package.module:function"
hidden = [32]
[settings]
rounds = 20                 # any setting of a task
metric = "f1"               # default: accuracy; several: ["f1", "accuracy"], the main one first
optimizer = {name = "adamw", weight_decay = 0.01}
schedule = {name = "cosine", rounds = 20}
[devices]                   # optional
file = "fleet.csv"          # or: kind = "synthetic" with its options
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fedbalancer.core.errors import BadData, BadSetting, UnknownName
from fedbalancer.core.settings import RUN_KEYS, is_policy_key
from fedbalancer.data import check_user_count
from fedbalancer.data.own.build import from_folder, from_npz
from fedbalancer.data.own.options import NOT_OF_A_RUN, SETTINGS, check_names, check_settings
from fedbalancer.data.task import Task
from fedbalancer.simulation.devices.fleet_files import fleet_of_table

TASK_SETTINGS = (*(key for key in SETTINGS if key not in NOT_OF_A_RUN), "metric", "model_bytes", "latency_batch_size")
"""Keys of [settings]."""


class _Folder(BaseModel):
    """Types of the keys of [data]. Ranges are checked where the values are used."""

    model_config = ConfigDict(strict=True)

    kind: str
    path: str
    classes: int | None = None
    test_share: float | None = None
    client_test_share: float | None = None
    seed: int | None = None


class _Table(_Folder):
    partition: str | None = None
    clients: int | None = None
    alpha: float | None = None
    shards_per_client: int | None = None


class _Npz(_Table):
    user: str | None = None
    label: str = "y"
    features: str = "x"


class _Parquet(_Table):
    user: str | None = None
    label: str
    features: str | list[str] | None = None
    shape: list[int] | None = None
    test: str | None = None


class _Images(_Table):
    by: str = "class"
    size: list[int] | None = None
    color: str = "rgb"
    test: str | None = None


class _HuggingFace(_Table):
    user: str | None = None
    label: str | None = None
    features: str | list[str] | None = None
    test: str | None = None
    split: str | None = None
    subset: str | None = None
    padding: float | dict[str, float] | None = None
    mask: str | None = None


def _from_huggingface(path: Path | str, *, user: str | None = None, **options: Any) -> Task:
    return Task.from_huggingface(path, partition_by=user, **options)


KINDS: Mapping[str, tuple[type[_Folder], Callable[..., Task]]] = {
    "parquet": (_Parquet, Task.from_parquet),
    "csv": (_Parquet, Task.from_csv),
    "images": (_Images, Task.from_images),
    "folder": (_Folder, from_folder),
    "npz": (_Npz, from_npz),
    "huggingface": (_HuggingFace, _from_huggingface),
}


def load_toml(path: Path, users: int | None = None, variant: str | None = None) -> Task:
    """Load the task of a TOML file.

    Args:
        path: The file.
        users: Number of training clients. None: all.
        variant: Must be None, because task files have no variants.

    Raises:
        BadSetting: If the file has unknown or invalid keys.
        BadData: If the file or the data cannot be read.
    """
    if variant is not None:
        raise BadSetting(f"{path} has no variants; omit --variant {variant}")
    document = _read_document(path)
    data = _check_data(document["data"], path)
    kind = data.pop("kind")
    load = KINDS[kind][1]
    for key in ("path", "test"):
        if key in data and (kind != "huggingface" or (key == "path" and (path.parent / data[key]).exists())):
            data[key] = path.parent / data[key]  # the rest are names: of a data set to download, and of a split
    folder = str(path.parent.resolve())
    if ":" in str(document["model"].get("name")) and folder not in sys.path:
        sys.path.append(folder)  # the model's module may be next to the file, also for worker processes
    with _place(f"{path.name}, [settings]"):
        check_settings(document["settings"])
    with _place(path.name):
        task = load(data.pop("path"), model=document["model"], name=document["name"], **data, **document["settings"])
        devices = fleet_of_table(document["devices"], path.parent) if document["devices"] else None
    users = check_user_count(users, len(task.clients), str(path))
    clients = dict(islice(task.clients.items(), users))
    tests = {client: samples for client, samples in task.client_tests.items() if client in clients}
    return replace(task, clients=clients, client_tests=tests, devices=devices)


@contextmanager
def _place(place: str) -> Iterator[None]:
    """Add the place to errors about settings and names."""
    try:
        yield
    except (BadSetting, UnknownName) as error:
        error.args = (f"{error} ({place})",)
        raise


def model_name(path: Path) -> str:
    """Return the name of the model in a task file, without importing it."""
    return str(_read_document(path)["model"].get("name"))


def _read_document(path: Path) -> dict[str, Any]:
    """Read the file and check its keys."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadData(f"cannot read the task file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(f"{path} is not valid TOML: {error}") from error
    check_names(document, ("name", "data", "model", "settings", "devices"), f"key in {path.name}")
    for table in ("data", "model", "settings", "devices"):
        if table not in document and table in ("data", "model"):
            raise BadSetting(f"{path} has no [{table}]; a task file needs [data] and [model]")
        if not isinstance(document.setdefault(table, {}), dict):
            raise BadSetting(f"{path}: {table} = {document[table]!r} must be a table, [{table}]")
    name = document.setdefault("name", path.stem)
    if not isinstance(name, str) or not name:
        raise BadSetting(f"{path}: name = {name!r} must be text")
    for key in document["settings"]:
        if (key in RUN_KEYS or is_policy_key(key)) and key not in TASK_SETTINGS:
            raise BadSetting(f"{path}: {key} is not a setting of a task; use --set {key}=... or --config")
    check_names(document["settings"], TASK_SETTINGS, f"key in [settings] of {path.name}")
    return document


def _check_data(data: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Check names and types of the keys of [data]."""
    kind = data.get("kind")
    if kind is None:
        raise BadSetting(f"{path}: [data] has no kind; it must be {', '.join(KINDS)}")
    check_names([str(kind)], KINDS, f"kind of data in {path.name}")
    known = KINDS[kind][0]
    check_names(data, known.model_fields, f"key in [data] of {path.name}")
    try:
        return known(**data).model_dump(exclude_unset=True)
    except ValidationError as error:
        problem = error.errors()[0]
        key, message = problem["loc"][0], problem["msg"][0].lower() + problem["msg"][1:]
        if problem["type"] == "missing":
            raise BadSetting(f"{path}: [data] has no {key}, which kind = {kind!r} needs") from None
        raise BadSetting(f"{path}: {key} = {data[str(key)]!r} in [data]: {message}") from None
