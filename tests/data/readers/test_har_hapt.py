"""The raw recordings: what the filters let through, which readings become windows, and every fault named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData
from fedbalancer.data.readers import har as har_hapt

Arrays = dict[str, NDArray[Any]]


def recordings() -> Arrays:
    """Three recordings of 400 readings: subjects 1 (twice) and 2, who is one of the official test subjects."""
    rng = np.random.default_rng(0)
    return {
        "acc": rng.integers(-900, 900, (1200, 3)).astype(np.int16),
        "gyro": rng.integers(-3000, 3000, (1200, 3)).astype(np.int16),
        "acc_scale": np.array(720.0),
        "gyro_scale": np.array(3274.0),
        "lengths": np.array([[1, 1, 400], [2, 1, 400], [3, 2, 400]]),
        "labels": np.array(
            [[1, 1, 5, 10, 201], [1, 1, 7, 202, 400], [2, 1, 1, 1, 128], [2, 1, 6, 129, 200], [3, 2, 3, 1, 400]]
        ),
    }


def saved(folder: Path, arrays: Arrays) -> Path:
    path = folder / "raw.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type] # the stubs take them for an option
    return path


def test_only_whole_windows_of_the_six_activities_are_cut(tmp_path: Path) -> None:
    made = har_hapt.read_hapt(saved(tmp_path, recordings()))
    assert made.meta == {"names": ["s01"], "lengths": [3], "test_names": ["s02"], "test_lengths": [5]}
    assert list(made.arrays["y"]) == [4, 4, 0]
    assert list(made.arrays["test_y"]) == [2] * 5
    assert made.arrays["x"].shape == (3, 9, 128)
    assert made.arrays["x"].dtype == np.float32


def test_windows_are_cut_out_of_the_filtered_recording_at_their_labels(tmp_path: Path) -> None:
    data = recordings()
    made = har_hapt.read_hapt(saved(tmp_path, data))
    first = har_hapt.filter_recording(data["acc"][:400] / 720.0, data["gyro"][:400] / 3274.0)
    second = har_hapt.filter_recording(data["acc"][400:800] / 720.0, data["gyro"][400:800] / 3274.0)
    np.testing.assert_array_equal(made.arrays["x"][0], first[9:137].T)
    np.testing.assert_array_equal(made.arrays["x"][1], first[73:201].T)
    np.testing.assert_array_equal(made.arrays["x"][2], second[0:128].T)


def test_a_phone_at_rest_has_gravity_and_no_body_acceleration() -> None:
    acc, gyro = np.tile([0.8, -0.5, 0.3], (300, 1)), np.tile([0.1, 0.0, -0.1], (300, 1))
    np.testing.assert_allclose(
        har_hapt.filter_recording(acc, gyro), np.tile([0.8, -0.5, 0.3, 0, 0, 0, 0.1, 0, -0.1], (300, 1)), atol=1e-6
    )


def test_steps_are_body_acceleration_and_slow_turns_are_gravity() -> None:
    time_s = np.arange(3000)[:, None] / 50
    steps, turn = np.sin(2 * np.pi * 2.0 * time_s), np.sin(2 * np.pi * 0.02 * time_s)
    still = np.zeros((3000, 3))
    for signal, share in ((steps, 1.0), (turn, 0.0)):
        channels = har_hapt.filter_recording(signal * np.ones(3), still)[1000:]
        assert np.ptp(channels[:, 0]) == pytest.approx(2, rel=0.05)
        assert np.ptp(channels[:, 3]) == pytest.approx(2 * share, abs=0.3)


def test_a_single_wild_reading_is_taken_out() -> None:
    acc = np.ones((200, 3))
    acc[100] = 50
    np.testing.assert_allclose(har_hapt.filter_recording(acc, np.zeros((200, 3)))[:, :3], 1, atol=1e-6)


def test_filters_are_causal() -> None:
    rng = np.random.default_rng(1)
    acc, gyro = rng.normal(size=(300, 3)), rng.normal(size=(300, 3))
    whole, start = har_hapt.filter_recording(acc, gyro), har_hapt.filter_recording(acc[:200], gyro[:200])
    np.testing.assert_allclose(whole[:199], start[:199], atol=1e-6)  # the median looks one reading ahead


def put(name: str, row: int, values: list[int]) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        arrays[name][row] = values

    return change


def swap(**arrays: Any) -> Callable[[Arrays], None]:
    return lambda old: old.update({name: np.asarray(array) for name, array in arrays.items()})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (put("labels", 2, [2, 1, 13, 1, 128]), r"labels, row 2 \(subject 1\): activity is 13; it must be 1 to 12"),
        (put("labels", 2, [2, 1, 0, 1, 128]), r"labels, row 2 \(subject 1\): activity is 0"),
        (put("labels", 0, [9, 1, 5, 1, 128]), r"labels, row 0 \(subject 1\): this subject has no experiment 9"),
        (put("labels", 4, [3, 1, 5, 1, 128]), r"labels, row 4 \(subject 1\): this subject has no experiment 3"),
        (put("labels", 4, [3, 2, 3, 1, 401]), "readings 1 to 401, but the recording has 1 to 400"),
        (put("labels", 4, [3, 2, 3, 0, 300]), "readings 0 to 300, but the recording has 1 to 400"),
        (put("labels", 4, [3, 2, 3, 300, 200]), "readings 300 to 200, but"),
        (put("labels", 4, [3, 2, 3, 1, 127]), "subject 2 has no activity of at least 128 readings"),
        (put("labels", 4, [3, 2, 8, 1, 400]), "no test subjects"),
        (put("lengths", 1, [1, 1, 400]), r"lengths, row 1: experiment 1 \(subject 1\) occurs twice"),
        (put("lengths", 2, [3, 31, 400]), "lengths, row 2: subject 31 of 1 to 30"),
        (put("lengths", 2, [3, 2, 0]), "lengths, row 2: subject 2 of 1 to 30 with 0 readings"),
        (put("lengths", 2, [3, 2, 399]), "acc has 1200 readings, but lengths add up to 1199"),
        (swap(gyro=np.zeros((1199, 3), dtype=np.int16)), "gyro has 1199 readings, but lengths add up to 1200"),
        (swap(acc=np.full((1200, 3), np.nan)), r"acc is float64 of shape \(1200, 3\), not whole numbers"),
        (swap(acc=np.zeros((1200, 2), dtype=np.int16)), r"acc is int16 of shape \(1200, 2\), not whole numbers in 3"),
        (swap(acc_scale=0.0), r"acc_scale is 0\.0; it must be a positive number"),
        (swap(gyro_scale=np.nan), "gyro_scale is nan; it must be a positive number"),
    ],
)
def test_a_fault_is_named_with_its_place(tmp_path: Path, damage: Callable[[Arrays], None], message: str) -> None:
    arrays = recordings()
    damage(arrays)
    with pytest.raises(BadData, match=rf"raw\.npz.*{message}"):
        har_hapt.read_hapt(saved(tmp_path, arrays))


def test_an_array_that_is_missing(tmp_path: Path) -> None:
    arrays = recordings()
    del arrays["labels"]
    with pytest.raises(BadData, match=r"raw\.npz is not a \.npz file of the raw recordings.*labels"):
        har_hapt.read_hapt(saved(tmp_path, arrays))


@pytest.mark.parametrize("content", [b"", b"hello", "cut"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes | str) -> None:
    path = saved(tmp_path, recordings())
    path.write_bytes(path.read_bytes()[:5000] if isinstance(content, str) else content)
    with pytest.raises(BadData, match=r"raw\.npz is not a \.npz file of the raw recordings"):
        har_hapt.read_hapt(path)


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"raw\.npz is not a \.npz file"):
        har_hapt.read_hapt(saved(tmp_path, {**recordings(), "acc": np.array([[None] * 3])}))
