"""FEMNIST: the published model and settings, LEAF's data as users have it, and two stand-ins that say what they are."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from fedbalancer.core.errors import BadData, BadSetting, MissingData, UnknownName
from fedbalancer.data import load_task
from fedbalancer.data.tasks import femnist

torch = pytest.importorskip("torch", reason="models need the extra [torch]")

SHARED = Path(os.environ.get("FEDBALANCER_DATA", Path(__file__).parents[3].parent / "shared" / "data"))


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBALANCER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FEDBALANCER_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Path:
    if not (SHARED / "mnist_by_writer.npz").is_file():
        pytest.skip(f"the stand-ins are not in {SHARED}; FEDBALANCER_DATA names another folder")
    monkeypatch.setenv("FEDBALANCER_DATA", str(SHARED))
    return SHARED


def write_leaf(folder: Path, users: dict[str, int], label: int = 5) -> Path:
    """LEAF's JSON of users with random images each, pixels as multiples of 1/255."""
    rng = np.random.default_rng(0)
    data = {
        user: {"x": (rng.integers(0, 256, (count, 784)) / 255).tolist(), "y": [label] * count}
        for user, count in users.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "all_data_0_niid_2_keep_0.json"
    document = {"users": list(users), "num_samples": list(users.values()), "user_data": data}
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_the_published_model_has_the_published_size() -> None:
    task_model = femnist.make_model()
    assert sum(part.numel() for part in task_model.parameters()) == 6_603_710
    assert femnist.MODEL_BYTES == 4 * 6_603_710
    shapes = {name: tuple(part.shape) for name, part in task_model.named_parameters() if part.ndim > 1}
    assert list(shapes.values()) == [(32, 1, 5, 5), (64, 32, 5, 5), (2048, 3136), (62, 2048)]


@pytest.mark.parametrize("batch", [1, 3])
def test_the_model_gives_a_score_for_every_class(batch: int) -> None:
    assert femnist.make_model(dense=16)(torch.rand(batch, 1, 28, 28)).shape == (batch, 62)


def test_the_settings_are_the_published_ones(tmp_path: Path) -> None:
    write_leaf(tmp_path / "data" / "femnist" / "train", {f"f{k:04d}_00": 1 for k in range(130)})
    write_leaf(tmp_path / "data" / "femnist" / "test", {"f9000_00": 2})
    paper = femnist.load("paper")
    assert paper.settings().items() >= {
        "batch_size": 10, "epochs": 5, "learning_rate": 0.001, "clients_per_round": 100, "rounds": 1000,
        "eval_every": 5, "clip_norm": None, "prox_mu": 0.0, "sample_selection_deadline": 1, "latency": "femnist",
    }.items()  # fmt: skip
    assert len(paper.clients) == 130
    small = femnist.load("small")
    assert len(small.clients) == 100
    assert small.clients_per_round == 10
    assert small.rounds < paper.rounds
    assert small.model_bytes == paper.model_bytes


def test_small_images_are_means_of_four_pixels(tmp_path: Path) -> None:
    write_leaf(tmp_path / "data" / "femnist", {"f0000_14": 2, "f0001_41": 2})
    paper, small = femnist.load("paper"), femnist.load("small")
    client = next(iter(paper.clients))
    large, shrunk = paper.clients[client][0], small.clients[client][0]
    assert shrunk.shape == (2, 1, 14, 14)
    np.testing.assert_allclose(shrunk[0, 0, 3, 5], large[0, 0, 6:8, 10:12].mean(), rtol=1e-6)
    assert small.test[0].shape[1:] == (1, 14, 14)
    assert small.model()(torch.from_numpy(shrunk)).shape == (2, 62)


@pytest.mark.parametrize("inside", ["femnist", "femnist/data"])
def test_leafs_own_split_is_kept(tmp_path: Path, inside: str) -> None:
    write_leaf(tmp_path / "data" / inside / "train", {"f0000_14": 3, "f0001_41": 2})
    write_leaf(tmp_path / "data" / inside / "test", {"f0002_01": 4})
    task = load_task("femnist", scale="paper")
    assert task.variant == "leaf"
    assert dict(task.sizes) == {"f0000_14": 3, "f0001_41": 2}
    features, labels = task.clients["f0000_14"]
    assert features.shape == (3, 1, 28, 28)
    assert features.dtype == np.float32
    assert labels.tolist() == [5] * 3
    assert task.test[0].shape == (4, 1, 28, 28)
    assert task.clients_per_round == 2


def test_files_without_a_split_are_split_by_user(tmp_path: Path) -> None:
    write_leaf(tmp_path / "data" / "femnist", {f"f{k:04d}_00": 2 for k in range(20)})
    task = femnist.load("paper")
    assert len(task.clients) == 18
    assert len(task.test[1]) == 4


def test_a_label_out_of_range_is_named_and_nothing_is_cached(tmp_path: Path) -> None:
    path = write_leaf(tmp_path / "data" / "femnist", {"f0000_14": 1, "f0001_41": 1}, label=62)
    with pytest.raises(BadData, match="user 'f0000_14', sample 0: label 62; labels must be 0 to 61") as error:
        femnist.load()
    assert str(path) in str(error.value)
    assert not list((tmp_path / "cache").glob("prepared/femnist-*"))


def test_changed_files_are_read_again(tmp_path: Path) -> None:
    users = {"f0000_14": 1, "f0001_41": 1}
    for label in (3, 4):
        path = write_leaf(tmp_path / "data" / "femnist", users, label)
        os.utime(path, ns=(label, label))
        assert femnist.load().test[1].tolist() == [label]


def test_without_data_it_says_what_to_do() -> None:
    with pytest.raises(MissingData, match=r"task 'femnist' needs femnist in .*; run: fedbalancer data"):
        femnist.load()
    with pytest.raises(UnknownName, match="did you mean digits"):
        femnist.load(variant="digit")


def test_a_number_of_users_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    write_leaf(tmp_path / "data" / "femnist", {f"f{k:04d}_00": 1 for k in range(10)})
    assert len(femnist.load(users=4).clients) == 4
    with pytest.raises(BadSetting, match="users is 10, but the data can have 1 to 9"):
        femnist.load(users=10)


def test_digits_are_mnists_writers_in_mnists_split(shared: Path) -> None:
    task = femnist.load("paper", variant="digits")
    assert task.variant == "digits"
    assert len(task.clients) == 539
    assert sum(task.sizes.values()) == 60_000
    assert len(task.test[1]) == 10_000
    assert task.notes["test_users"] == 297
    assert set(np.unique(task.test[1])) == set(range(10))
    started = time.perf_counter()
    small = femnist.load("small", variant="digits")
    assert time.perf_counter() - started < 2
    assert len(small.clients) == 100
    features, _ = next(iter(small.clients.values()))
    assert features.min() == 0
    assert features.max() == 1


def test_strokes_are_the_62_characters_of_55_writers(shared: Path) -> None:
    task = femnist.load("paper", variant="strokes")
    assert task.sizes == dict.fromkeys(task.clients, 62)
    assert len(task.clients) == 49
    assert len(task.test[1]) == 6 * 62
    assert set(task.test[1]) == set(range(62))
    assert task.clients_per_round == 49
