"""UCI-HAR: the published model and settings, on the official folder or on the recordings behind it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbalancer.core.errors import BadData, BadSetting, MissingData, UnknownName
from fedbalancer.data.registry import load_task
from fedbalancer.data.task import Task
from fedbalancer.data.tasks import har
from fedbalancer.data.tasks.har import ACTIVITIES, SIGNALS

HAPT = har.SOURCES[1].files[0]
OFFICIAL_SIZES = [
    347,
    341,
    302,
    325,
    308,
    281,
    316,
    323,
    328,
    366,
    368,
    360,
    408,
    321,
    372,
    409,
    392,
    376,
    382,
    344,
    383,
]


def shared_data() -> Path:
    named = os.environ.get("FEDBALANCER_DATA")
    return Path(named) if named else Path(__file__).parents[3].parent / "shared" / "data"


SHARED = shared_data()
needs_recordings = pytest.mark.skipif(
    not (SHARED / HAPT).is_file(), reason=f"{HAPT} is neither in FEDBALANCER_DATA nor in ../shared/data"
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Task]:
    """The task of paper scale on the recordings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDBALANCER_DATA", str(SHARED))
        patch.setenv("FEDBALANCER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield har.load("paper", variant="hapt")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny official folder: seven training subjects, one test subject, two windows each."""
    monkeypatch.setenv("FEDBALANCER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FEDBALANCER_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "data" / "UCI HAR Dataset"
    for part, subjects in (("train", (1, 3, 5, 6, 7, 8, 11)), ("test", (2,))):
        (root / part / "Inertial Signals").mkdir(parents=True)
        (root / part / f"subject_{part}.txt").write_text("".join(f"{who}\n{who}\n" for who in subjects))
        (root / part / f"y_{part}.txt").write_text("1\n6\n" * len(subjects))
        for signal in SIGNALS:
            lines = (" 1.0000000e-001" * 128 + "\n") * (2 * len(subjects))
            (root / part / "Inertial Signals" / f"{signal}_{part}.txt").write_text(lines)
    return root


@needs_recordings
def test_the_official_subjects_train_and_test(recorded: Task) -> None:
    assert len(recorded.clients) == 21
    assert recorded.notes["test_subjects"] == [f"s{who:02d}" for who in (2, 4, 9, 10, 12, 13, 18, 20, 24)]
    assert not set(recorded.clients) & set(recorded.notes["test_subjects"])
    assert recorded.variant == "hapt"


@needs_recordings
def test_everybody_has_about_the_official_number_of_windows(recorded: Task) -> None:
    sizes = list(recorded.sizes.values())
    assert sum(sizes) == 7415  # official: 7352
    assert len(recorded.test[1]) == 2996  # official: 2947
    assert np.abs(np.array(sizes) - OFFICIAL_SIZES).max() <= 10


@needs_recordings
def test_walking_has_the_official_number_of_windows_and_postures_a_few_more(recorded: Task) -> None:
    train = np.bincount(np.concatenate([labels for _, labels in recorded.clients.values()]))
    test = np.bincount(recorded.test[1])
    assert list(train[:3]) == [1226, 1073, 987]  # official: 1226, 1073, 986
    assert list(test[:3]) == [496, 471, 420]
    np.testing.assert_allclose(train[3:] / [1286, 1374, 1407], 1, atol=0.05)
    np.testing.assert_allclose(test[3:] / [491, 532, 537], 1, atol=0.05)


@needs_recordings
def test_windows_are_in_g_and_rad_s(recorded: Task) -> None:
    features, labels = recorded.test
    assert features.shape == (2996, 9, 128)
    still = features[(labels == ACTIVITIES.index("standing"))]
    gravity_g = np.linalg.norm(still[:, :3].mean(axis=2), axis=1)
    np.testing.assert_allclose(gravity_g, 1, atol=0.1)
    assert np.abs(still[:, 6:].mean()) < 0.1
    assert 1 < np.abs(features[labels == 0][:, 6:]).max() < 11  # the sensor's range is 10 rad/s


@needs_recordings
def test_a_short_training_learns_something(recorded: Task) -> None:
    pytest.importorskip("torch", reason="the model needs the extra [torch]")
    from fedbalancer.core.types import ClientWork
    from fedbalancer.training.trainer import TorchTrainer

    trainer = TorchTrainer(recorded)
    weights = trainer.initial_weights(0)
    job = ClientWork("s01", np.arange(recorded.sizes["s01"]), 35, 10, recorded.learning_rate, 0.0, None, 0)
    before = trainer.losses(weights, "s01").mean()
    assert trainer.losses(weights + trainer.train(weights, job).update, "s01").mean() < 0.9 * before


def test_the_model_has_the_published_size() -> None:
    torch = pytest.importorskip("torch", reason="the model needs the extra [torch]")
    model = har.make_model()
    assert 4 * sum(p.numel() for p in model.parameters()) == 6_410_008
    assert model(torch.zeros(2, 9, 128)).shape == (2, 6)
    assert model[0](torch.zeros(1, 9, 128)).shape == (1, 9, 128 + 15)
    assert model[1](model[0](torch.zeros(1, 9, 128))).shape == (1, 192, 128)


@needs_recordings
def test_the_small_model_sees_every_second_reading_of_the_same_windows(recorded: Task) -> None:
    torch = pytest.importorskip("torch", reason="the model needs the extra [torch]")
    small = har.load("small", variant="hapt")
    assert small.sizes == recorded.sizes
    np.testing.assert_array_equal(small.test[0], recorded.test[0][:, :, ::2])
    np.testing.assert_array_equal(small.clients["s01"][0], recorded.clients["s01"][0][:, :, ::2])
    assert small.model()(torch.zeros(2, 9, 64)).shape == (2, 6)
    assert small.model_bytes == recorded.model_bytes == 6_410_008


def test_weights_start_as_glorot_says() -> None:
    pytest.importorskip("torch", reason="the model needs the extra [torch]")
    model = har.make_model()
    layers: list[tuple[Any, int]] = [(model[1], 16 * (9 + 192)), (model[5], 6144 + 256), (model[7], 256 + 6)]
    for layer, fans in layers:
        assert layer.weight.abs().max().item() == pytest.approx((6 / fans) ** 0.5, rel=0.02)
        assert layer.bias.abs().max().item() == 0


def test_settings_are_the_published_ones(folder: Path) -> None:
    paper, small = har.load("paper"), load_task("har", scale="small")
    assert paper.settings().items() >= {
        "batch_size": 10, "epochs": 5, "learning_rate": 0.005, "clients_per_round": 5, "rounds": 50, "eval_every": 5,
        "clip_norm": None, "prox_mu": 0.0, "sample_selection_deadline": 1, "latency": "har",
    }.items()  # fmt: skip
    changed = {key for key, value in small.settings().items() if paper.settings()[key] != value}
    assert changed == {"rounds"}
    assert paper.variant == "uci"
    assert paper.classes == 6


@pytest.mark.parametrize("variant", ["uci", None])
def test_the_official_folder_is_found(folder: Path, variant: str | None) -> None:
    task = har.load("paper", variant=variant)
    assert task.sizes == dict.fromkeys(["s01", "s03", "s05", "s06", "s07", "s08", "s11"], 2)
    assert list(task.test[1]) == [0, 5]


def test_the_official_data_come_first(folder: Path) -> None:
    (folder.parent / HAPT).touch()
    assert har.load().variant == "uci"


def test_fewer_users_are_the_first_ones(folder: Path) -> None:
    few = har.load(users=3)
    assert list(few.clients) == ["s01", "s03", "s05"]
    assert few.clients_per_round == 3
    for users in (0, 8):
        with pytest.raises(BadSetting, match=f"users is {users}, but har can have 1 to 7"):
            har.load(users=users)


def test_the_second_start_reads_the_cache_and_a_change_is_noticed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    har.load()
    with monkeypatch.context() as patch:
        patch.setattr(har, "read_uci", lambda path: pytest.fail("prepared twice"))
        assert isinstance(har.load("paper").test[0], np.memmap)
    labels = folder / "test" / "y_test.txt"
    labels.write_text("2\n3\n\n"[:-1])
    assert list(har.load().test[1]) == [1, 2]


def test_a_damaged_folder_leaves_nothing_in_the_cache(folder: Path) -> None:
    labels = folder / "train" / "y_train.txt"
    good = labels.read_text()
    labels.write_text("9" + good[1:])
    for _ in range(2):
        with pytest.raises(BadData, match=r"y_train\.txt, line 1: activity is '9'"):
            har.load()
    labels.write_text(good)
    assert len(har.load().clients) == 7


def test_a_folder_without_its_files_is_named(folder: Path) -> None:
    (folder / "train" / "y_train.txt").unlink()
    with pytest.raises(MissingData, match=r"y_train\.txt is missing"):
        har.load()


def test_without_data_the_user_is_told_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBALANCER_DATA", str(tmp_path))
    with pytest.raises(MissingData, match=r"needs UCI HAR Dataset in .*; run: fedbalancer data get har"):
        har.load()
    with pytest.raises(MissingData, match="variant 'hapt' of task 'har'"):
        har.load(variant="hapt")
    with pytest.raises(UnknownName, match="unknown variant of har 'hapd'; did you mean hapt"):
        har.load(variant="hapd")
