"""The demo task: real recordings, read without trusting them, nobody in both training and test."""

from __future__ import annotations

import io
import os
import pickle
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbalancer.core.errors import BadData, BadSetting, MissingData
from fedbalancer.data.task import Task
from fedbalancer.data.tasks import watch

needs_recordings = pytest.mark.skipif(find_spec("seglearn") is None, reason="the recordings need the extra [demo]")


@pytest.fixture(scope="module")
def task() -> Task:
    return watch.load()


@needs_recordings
def test_sixteen_arms_train_and_four_are_held_out(task: Task) -> None:
    assert len(task.clients) == 16
    assert sum(task.sizes.values()) + len(task.test[1]) == 3605
    assert {name[4:] for name in task.clients} == {"left", "right"}
    assert task.latency == "har"


@needs_recordings
def test_nobody_is_in_training_and_test(task: Task) -> None:
    recordings = watch.read_recordings(watch.recordings_path())
    people = {recording.person for recording in recordings}
    assert people == set(range(1, 11))
    trained = {int(name[1:3]) for name in task.clients}
    assert trained == people - set(watch.HELD_OUT)
    held_out = sum(len(watch.windows(r.signal)) for r in recordings if r.person in watch.HELD_OUT)
    assert held_out == len(task.test[1])


@needs_recordings
def test_samples_are_normalised_windows_of_all_exercises(task: Task) -> None:
    for features, labels in [*task.clients.values(), task.test]:
        assert features.shape == (len(labels), 6, 128)
        assert features.dtype == np.float32
        assert set(labels) == set(range(7))
    seen = np.concatenate([features for features, _ in task.clients.values()])
    np.testing.assert_allclose(seen.mean(axis=(0, 2)), 0, atol=1e-4)
    np.testing.assert_allclose(seen.std(axis=(0, 2)), 1, atol=1e-4)


@needs_recordings
def test_fewer_users_are_the_first_ones() -> None:
    few = watch.load(users=3)
    assert list(few.clients) == ["s01-left", "s01-right", "s02-left"]
    assert few.clients_per_round == 3
    with pytest.raises(BadSetting, match="users is 17, but watch can have 1 to 16"):
        watch.load(users=17)


@needs_recordings
def test_one_epoch_of_the_model_learns_something(task: Task) -> None:
    pytest.importorskip("torch", reason="the model needs the extra [torch]")
    from fedbalancer.core.types import ClientWork
    from fedbalancer.training.trainer import TorchTrainer

    trainer = TorchTrainer(task)
    weights = trainer.initial_weights(0)
    job = ClientWork("s01-left", np.arange(task.sizes["s01-left"]), 24 * 3, 10, 0.02, 0.0, None, 0)
    before = trainer.losses(weights, "s01-left").mean()
    assert trainer.losses(weights + trainer.train(weights, job).update, "s01-left").mean() < 0.9 * before


def test_windows_overlap_by_half_and_leave_a_rest_out() -> None:
    signal = np.arange(300.0)[:, None] * np.ones(6)
    cut = watch.windows(signal)
    assert cut.shape == (3, 6, 128)
    assert list(cut[:, 0, 0]) == [0, 64, 128]
    assert watch.windows(signal[:128]).shape == (1, 6, 128)


def test_without_the_package_the_user_is_told_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "find_spec", lambda name: None)
    with pytest.raises(MissingData, match=r"pip install 'fedbalancer\[demo\]'"):
        watch.load()


def npy(thing: Any, protocol: int = 2) -> io.BytesIO:
    """A .npy file of one pickled object, as NumPy writes it, around anything."""
    file = io.BytesIO()
    np.save(file, np.array(0, dtype=object), allow_pickle=True)
    header = file.getvalue()[: file.getvalue().index(b"\n") + 1]
    return io.BytesIO(header + pickle.dumps(thing, protocol))


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.reduced = (call, arguments)

    def __reduce__(self) -> Any:
        return self.reduced


@pytest.mark.parametrize("call", [os.system, eval, exec, __import__, getattr, np.load])
def test_a_malicious_pickle_is_refused_before_it_runs(call: Any, tmp_path: Path) -> None:
    proof = tmp_path / "ran"
    evil = Evil(call, f"touch {proof}" if call is os.system else f"open({str(proof)!r}, 'w')")
    with pytest.raises(BadData, match="is not allowed"):
        watch.read_pickled_npy(npy({"X": evil}), "evil.npy")
    assert not proof.exists()


def test_only_the_latin1_codec_is_admitted() -> None:
    import _codecs

    with pytest.raises(BadData, match="'rot13' is not allowed"):
        watch.read_pickled_npy(npy(Evil(_codecs.encode, "abc", "rot13")), "evil.npy")


def test_arrays_and_plain_types_are_read() -> None:
    data = {"X": [np.arange(3.0), np.zeros((2, 2), dtype=np.int32)], "names": ["a", "b"], "n": 1, "b": b"\xff"}
    for protocol in (2, 4):
        read = watch.read_pickled_npy(npy(np.array(data, dtype=object), protocol), "good.npy")
        assert read["names"] == ["a", "b"]
        np.testing.assert_array_equal(read["X"][0], [0, 1, 2])


@pytest.mark.parametrize("content", [b"", b"hello", b"\x93NUMPY\x01\x00", npy([1]).getvalue(), npy({}).getvalue()[:-3]])
def test_a_damaged_file_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "watch_dataset.npy"
    path.write_bytes(content)
    with pytest.raises(BadData, match=r"watch_dataset\.npy"):
        watch.read_recordings(path)


def test_a_file_of_other_arrays_is_named(tmp_path: Path) -> None:
    path = tmp_path / "other.npy"
    path.write_bytes(npy(np.array({"X": [1.0]}, dtype=object)).getvalue())
    with pytest.raises(BadData, match=r"other\.npy is not the file of recordings"):
        watch.read_recordings(path)
