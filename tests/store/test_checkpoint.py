"""A checkpoint is loaded exactly as it was saved, or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedbalancer.core.errors import RunFolderError
from fedbalancer.store.checkpoint import ARRAYS, STATE, Checkpoints, peek_latest

TYPES = (np.float32, np.float64, np.int64, np.bool_, np.uint8)


def arrays_of(step: int) -> dict[str, Any]:
    return {"weights": np.full(3, step, dtype=np.float32), "size": np.array([step])}


def two_saved(folder: Path) -> None:
    checkpoints = Checkpoints(folder)
    for step in (1, 2):
        checkpoints.save(step, {"step": step}, arrays_of(step))


def loaded_step(checkpoints: Checkpoints) -> int:
    """The step of what was loaded, after a look at whether all of it is of that step."""
    loaded = checkpoints.load_latest()
    assert loaded is not None
    blob, arrays = loaded
    expected = arrays_of(blob["step"])
    assert list(arrays) == list(expected)
    assert all(arrays[name].tobytes() == expected[name].tobytes() for name in expected)
    return int(blob["step"])


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_nothing_saved_is_none(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "absent").load_latest() is None


@pytest.mark.parametrize("shape", [(), (0,), (3,), (0, 4), (2, 3)])
def test_types_and_shapes_come_back_writable(tmp_path: Path, shape: tuple[int, ...]) -> None:
    arrays = {np.dtype(kind).name: np.ones(shape, dtype=kind) for kind in TYPES}
    arrays["strided"] = np.arange(12.0).reshape(3, 4).T[::2]
    Checkpoints(tmp_path).save(0, {}, arrays)
    loaded = Checkpoints(tmp_path).load_latest()
    assert loaded is not None
    for name, array in arrays.items():
        back = loaded[1][name]
        assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())
        assert back.flags.writeable
    assert list(loaded[1]) == list(arrays)


def test_no_arrays_is_fine(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(3, {"a": [1, None, "ε"]}, {})
    assert Checkpoints(tmp_path).load_latest() == ({"a": [1, None, "ε"]}, {})


def test_two_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    (tmp_path / "journal.jsonl").write_bytes(b"not ours to remove")
    for step in (1, 2, 10, 11):
        checkpoints.save(step, {"step": step}, arrays_of(step))
    assert names(tmp_path) == ["journal.jsonl", "step-00000010", "step-00000011"]
    assert loaded_step(checkpoints) == 11


def test_same_step_again_replaces(tmp_path: Path) -> None:
    two_saved(tmp_path)
    Checkpoints(tmp_path).save(2, {"other": True}, {})
    assert Checkpoints(tmp_path).load_latest() == ({"other": True}, {})
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


def test_leftovers_of_a_kill_are_removed(tmp_path: Path) -> None:
    two_saved(tmp_path)
    (tmp_path / "tmp-123").mkdir()
    (tmp_path / "tmp-123" / STATE).write_bytes(b"half")
    assert loaded_step(Checkpoints(tmp_path)) == 2
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


@pytest.mark.parametrize("file", [STATE, ARRAYS])
@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_any_damage_falls_back(memory_path: Path, file: str, damage: str) -> None:
    two_saved(memory_path)
    target = memory_path / "step-00000002" / file
    whole = target.read_bytes()
    for place in range(len(whole)):
        flipped = whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :]
        target.write_bytes(flipped if damage == "flip" else whole[:place])
        checkpoints = Checkpoints(memory_path)
        assert loaded_step(checkpoints) == 1
        assert len(checkpoints.warnings) == 1
        assert "step-00000002 is damaged" in checkpoints.warnings[0]


@given(data=st.binary(max_size=300))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])  # each example overwrites
def test_garbage_is_never_loaded(memory_path: Path, data: bytes) -> None:
    (memory_path / "step-00000001").mkdir(exist_ok=True)
    for file in (STATE, ARRAYS):
        (memory_path / "step-00000001" / file).write_bytes(data)
    with pytest.raises(RunFolderError, match="no checkpoint can be read"):
        Checkpoints(memory_path).load_latest()


@pytest.mark.parametrize("file", [STATE, ARRAYS])
def test_missing_file_falls_back(tmp_path: Path, file: str) -> None:
    two_saved(tmp_path)
    (tmp_path / "step-00000002" / file).unlink()
    assert loaded_step(Checkpoints(tmp_path)) == 1


def test_files_of_different_checkpoints_do_not_mix(tmp_path: Path) -> None:
    two_saved(tmp_path)
    (tmp_path / "step-00000002" / ARRAYS).write_bytes((tmp_path / "step-00000001" / ARRAYS).read_bytes())
    assert loaded_step(Checkpoints(tmp_path)) == 1


def test_all_damaged_is_an_error_that_names_them(tmp_path: Path) -> None:
    two_saved(tmp_path)
    for step in (1, 2):
        (tmp_path / f"step-0000000{step}" / STATE).write_bytes(b"{}")
    with pytest.raises(RunFolderError, match=r"step-00000002 and .*step-00000001 are damaged"):
        Checkpoints(tmp_path).load_latest()


def test_the_good_one_is_kept_after_a_fallback(tmp_path: Path) -> None:
    two_saved(tmp_path)
    (tmp_path / "step-00000002" / ARRAYS).write_bytes(b"")
    checkpoints = Checkpoints(tmp_path)
    assert loaded_step(checkpoints) == 1
    checkpoints.save(5, {"step": 5}, arrays_of(5))
    assert names(tmp_path) == ["step-00000001", "step-00000005"]


def test_floats_that_json_lacks_are_refused_and_nothing_changes(tmp_path: Path) -> None:
    two_saved(tmp_path)
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(ValueError):
        checkpoints.save(3, {"clock_s": float("inf")}, {})
    assert loaded_step(checkpoints) == 2
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


def test_a_look_at_another_process_changes_nothing(tmp_path: Path) -> None:
    assert peek_latest(tmp_path / "absent") is None
    two_saved(tmp_path)
    (tmp_path / "tmp-being-written").mkdir()
    newest = peek_latest(tmp_path)
    assert newest is not None
    expected = Checkpoints(tmp_path)._path(2)
    (expected / STATE).write_bytes(b"half")
    older = peek_latest(tmp_path)
    assert older is not None
    assert older[0] != newest[0]
    assert (tmp_path / "tmp-being-written").is_dir()
    assert expected.is_dir()
