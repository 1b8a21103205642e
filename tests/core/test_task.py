"""All samples of a task are of one kind, however the task was made; if not, one line says who has what, and nothing
runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fedbalancer as fb
from fedbalancer.core.errors import BadData
from fedbalancer.core.task import Samples, check_alike
from fedbalancer.core.types import ClientWork
from fedbalancer.data import Task
from fedbalancer.data.catalogue.catalog import count_facts
from fedbalancer.data.clients import SlicedClients
from fedbalancer.training.tensors import to_tensors
from fedbalancer.training.trainer import BACKENDS, TorchTrainer

torch = pytest.importorskip("torch", reason="models need the extra [torch]")
nn = torch.nn

ALIKE = "all of a task must be of one kind"


def images(side: int, kind: Any = np.float32, labels: Any = np.int64, count: int = 12) -> Samples:
    rng = np.random.default_rng(side)
    return rng.integers(0, 200, (count, 1, side, side)).astype(kind), rng.integers(0, 4, count).astype(labels)


def model() -> Any:
    """A row of layers, all with kernels of our own."""
    return nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(4096, 4))


class Later(Mapping[str, Samples]):
    """Clients made on demand: nobody can look at them before they are asked for."""

    def __init__(self, clients: dict[str, Samples]) -> None:
        self._clients = clients
        self.sizes = {client: len(labels) for client, (_, labels) in clients.items()}

    def __getitem__(self, client: str) -> Samples:
        return self._clients[client]

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


ODD: dict[str, tuple[Samples, str]] = {
    "larger": (images(40), r"has samples of shape \(1, 40, 40\), but {} has samples of shape \(1, 32, 32\)"),
    "smaller": (images(24), r"has samples of shape \(1, 24, 24\), but {} has"),
    "flat": ((images(32)[0][:, 0], images(32)[1]), r"has samples of shape \(32, 32\), but {} has"),
    "whole numbers": (
        images(32, np.int64),
        "has features that train as int64, but {} has features .* float32",
    ),
    "wide bytes": (images(32, np.uint16), "has features that train as int64, but {} has"),
    "labels of two": ((images(32)[0], np.zeros((12, 2), int)), r"has labels of shape \(2,\), but {} has .* \(\)"),
    "float labels": (images(32, labels=np.float32), "has labels that train as float32, but {} has .* int64"),
    "text": (images(32, str), "has features of type <U.*, such as '[0-9]+'; they must be numbers"),
    "text labels": (
        images(32, labels=str),
        r"has labels of type <U.*must be numbers; number the classes 0, 1, 2, \.\.\.",
    ),
    "complex": (images(32, complex), "has features of type complex128"),
}


@pytest.mark.parametrize("name", ODD)
def test_a_client_or_a_test_of_another_kind_is_refused_when_the_task_is_made(name: str) -> None:
    odd, message = ODD[name]
    with pytest.raises(BadData, match="^client 'bob' " + message.format("client 'ann'")):
        Task({"ann": images(32), "cy": images(32), "bob": odd}, images(32), model)
    with pytest.raises(BadData, match="^the test data " + message.format("client 'ann'")):
        Task({"ann": images(32)}, odd, model)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ODD)
def test_one_made_on_demand_is_refused_when_it_is_fetched(name: str, backend: str) -> None:
    odd, message = ODD[name]
    task = Task(Later({"ann": images(32), "bob": odd}), images(32), model)
    trainer = TorchTrainer(task, backend)
    weights, work = trainer.initial_weights(0), ClientWork("bob", np.arange(12), 2, 6, 0.1, 0.0, None, seed=0)
    for ask in (lambda: trainer.train(weights, work), lambda: trainer.losses(weights, "bob")):
        with pytest.raises(BadData, match="^client 'bob' " + message.format("the test data")):
            ask()
    with pytest.raises(BadData, match="client 'bob' "):
        count_facts(task, "odd", "small")
    with pytest.raises(BadData, match="the test data " + message.format("client 'ann'")):
        TorchTrainer(Task(Later({"ann": images(32)}), odd, model), backend)


@pytest.mark.parametrize("method", ["prox+2t", "fedbalancer"])
def test_a_run_ends_with_the_line_and_nothing_else(method: str) -> None:
    task = Task(Later({"ann": images(32), "bob": images(40)}), images(32), model)
    with pytest.raises(BadData, match=r"client 'bob' has samples of shape \(1, 40, 40\)"):
        fb.run(task, method, rounds=5)


def test_slices_of_one_array_are_compared_with_the_test() -> None:
    clients = SlicedClients(("ann", "bob"), (6, 6), *images(32))
    with pytest.raises(BadData, match=r"the test data has samples of shape \(1, 40, 40\)"):
        TorchTrainer(Task(clients, images(40), model))


@pytest.mark.parametrize("one", [np.float32, np.float64, np.float16, np.uint8, bool])
@pytest.mark.parametrize("other", [np.float64, np.uint8, bool])
def test_types_that_train_as_one_may_differ(one: Any, other: Any) -> None:
    Task({"ann": images(32, one, np.int64), "bob": images(32, other, np.uint8)}, images(32, labels=np.int16), model)


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "u1", "?", "i1", "i4", "i8", "u2", "u4", "u8"])
def test_what_a_type_trains_as_is_what_torch_is_given(kind: str) -> None:
    array = np.ones(3, kind)
    for place, part in enumerate(to_tensors((array, array))):
        floats, wholes = ([array, array] for _ in range(2))
        floats[place], wholes[place] = np.ones(3, "f4"), np.ones(3, "i8")
        same = floats if part.dtype == torch.float32 else wholes
        other = wholes if same is floats else floats
        check_alike({"one": (array, array), "other": (same[0], same[1])})
        with pytest.raises(BadData, match=ALIKE):
            check_alike({"one": (array, array), "other": (other[0], other[1])})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clients": {0: images(8), "1": images(8)}}, "client 0 is named by int; ids are text: use '0'"),
        ({"clients": {("a",): images(8)}}, "is named by tuple"),
        ({"model_bytes": -5}, "model_bytes = -5 must be a whole number"),
        ({"model_bytes": 0}, "model_bytes = 0 must be"),
        ({"model_bytes": 1e9}, "model_bytes = 1000000000.0 must be"),
    ],
)
def test_odd_ids_and_sizes_are_refused(changes: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"clients": {"a": images(8)}, "test": images(8), "model": model}
    with pytest.raises(BadData, match=re.escape(words)):
        Task(**{**given, **changes})


def test_clients_without_ids_are_refused_in_one_line() -> None:
    with pytest.raises(BadData, match=r"^clients must be a mapping of ids to samples.*, not list$"):
        Task([images(8), images(8)], images(8), model)  # type: ignore[arg-type]


def test_a_feature_that_one_client_lacks_or_adds_is_named() -> None:
    x, y = images(8)
    both, one = ({"left": x, "right": x}, y), ({"left": x}, y)
    with pytest.raises(BadData, match="^client 'bob' has no feature 'right', but client 'ann' has; " + ALIKE):
        Task({"ann": both, "bob": one}, both, model)
    with pytest.raises(BadData, match="^client 'ann' has no feature 'right', but the test data has; " + ALIKE):
        Task({"ann": one, "bob": one}, both, model)
    Task({"ann": both, "bob": ({"right": x, "left": x}, y)}, both, model)  # in any order


def test_single_values_are_no_samples() -> None:
    with pytest.raises(BadData, match="client 'ann' must have one row of features and one label per sample"):
        Task({"ann": (np.array(1.0), np.array(1))}, images(32), model)


def _arrays(folder: Path) -> Task:
    return Task.from_arrays(*images(32), model=model, users=["ann", "bob"] * 6, test=images(40))


def _folder(folder: Path) -> Task:
    for user, side in (("ann", 32), ("bob", 40), ("test", 32)):
        x, y = images(side)
        np.savez(folder / f"{user}.npz", x=x, y=y)
    return Task.from_folder(folder, model=model)


def _parquet(folder: Path) -> Task:
    for name, length in (("data", 9), ("test", 16)):
        rows = {"who": ["ann", "bob"] * 3, "y": [0, 1] * 3, "x": [[1.0] * length] * 6}
        pl.DataFrame(rows).write_parquet(folder / f"{name}.parquet")
    files = folder / "data.parquet", folder / "test.parquet"
    return Task.from_parquet(files[0], user="who", label="y", features="x", test=files[1], model="mlp")


def _toml(folder: Path) -> Task:
    (folder / "data").mkdir()
    for user, side in (("ann", 32), ("bob", 40), ("test", 32)):
        x, y = images(side)
        np.savez(folder / "data" / f"{user}.npz", x=x, y=y)
    (folder / "task.toml").write_text('[data]\nkind = "folder"\npath = "data"\n[model]\nname = "mlp"\n')
    return fb.load_task(str(folder / "task.toml"))


@pytest.mark.parametrize("make", [_arrays, _folder, _parquet, _toml])
def test_every_way_to_a_task_refuses_it(make: Callable[[Path], Task], tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"has samples of shape .*" + ALIKE):
        make(tmp_path)


def test_files_of_different_types_that_a_model_of_ours_reads_alike_are_fine(tmp_path: Path) -> None:
    for user, kind in (("ann", np.int64), ("bob", np.float32), ("test", np.float64)):
        np.savez(tmp_path / f"{user}.npz", x=np.ones((4, 3), kind), y=["run", "walk"] * 2)
    task = Task.from_folder(tmp_path, model="mlp")
    assert {x.dtype.kind for x, _ in (*task.clients.values(), task.test)} == {"f"}


def tensors(samples: Samples) -> Any:
    return torch.tensor(samples[0]), torch.tensor(samples[1])


KINDS: dict[str, Callable[[Samples], Any]] = {
    "tensors": tensors,
    "tensors with gradients": lambda samples: (torch.tensor(samples[0]).requires_grad_(), torch.tensor(samples[1])),
    "bfloat16": lambda samples: (torch.tensor(samples[0]).bfloat16(), torch.tensor(samples[1])),
    "lists": lambda samples: (samples[0].tolist(), samples[1].tolist()),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mapping", [dict, Later])
@pytest.mark.parametrize("test", [True, False], ids=["test too", "clients only"])
def test_tensors_and_lists_train_as_arrays_do(kind: str, mapping: Any, test: bool) -> None:
    parts = {name: images(8, count=20 + 3 * row) for row, name in enumerate(("ann", "bob", "cy"))}
    changed, held_out = KINDS[kind], images(8, count=30)
    arrays = Task(parts, held_out, flat, latency="har", rounds=2)
    given = {name: changed(samples) for name, samples in parts.items()}
    other = Task(mapping(given), changed(held_out) if test else held_out, flat, latency="har", rounds=2)
    assert fb.run(other, "fedbalancer[w=1]").weights.tobytes() == fb.run(arrays, "fedbalancer[w=1]").weights.tobytes()


def flat() -> Any:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))


def test_shapes_of_tensors_are_told_as_shapes() -> None:
    with pytest.raises(
        BadData, match=r"^the test data has samples of shape \(1, 9, 9\), but client 'ann' has .*\(1, 8, 8\)"
    ):
        Task({"ann": tensors(images(8))}, tensors(images(9)), flat)


@pytest.mark.parametrize("wide", [1, 4, 7])
@pytest.mark.parametrize(("sample", "label"), [(0, -1), (7, -3), (11, 5)])
def test_a_wrong_label_of_several_is_found_in_its_sample(wide: int, sample: int, label: int) -> None:
    labels = np.zeros((12, wide), int)
    labels[sample, wide - 1] = label
    with pytest.raises(BadData, match=f"^client 'ann' has label {label} in sample {sample}; labels must be 0 to 3"):
        Task({"ann": (images(8)[0], labels)}, (images(8)[0], np.zeros((12, wide), int)), flat, classes=4)
