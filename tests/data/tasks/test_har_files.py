"""UCI-HAR and its raw recordings become windows, and errors name file and subject."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, MissingData
from fedbalancer.core.task import Samples
from fedbalancer.data.tasks import har
from fedbalancer.data.tasks.har import SIGNALS

HERE = Path("folder")


def samples(count: int) -> Samples:
    return np.zeros((count, 9, 128), dtype=np.float32), np.zeros(count, dtype=np.int64)


@given(st.integers(0, 700))
def test_windows_overlap_by_half_and_leave_a_rest_out(readings: int) -> None:
    signal = np.arange(readings, dtype=np.float32)[:, None] * np.ones(9, dtype=np.float32)
    cut = har.cut_windows(signal)
    assert cut.shape == (max(0, (readings - 128) // 64 + 1), 9, 128)
    assert list(cut[:, 3, 0]) == [64 * k for k in range(len(cut))]
    assert all(readings >= window[0, -1] + 1 for window in cut)


def test_subjects_are_clients_in_order_of_their_numbers() -> None:
    made = har.pack_subjects({11: samples(2), 3: samples(4)}, {2: samples(1)}, HERE)
    assert made.meta["names"] == ["s03", "s11"]
    assert made.meta["lengths"] == [4, 2]
    assert made.meta["test_names"] == ["s02"]
    assert made.arrays["x"].shape == (6, 9, 128)


def test_nobody_is_in_training_and_test() -> None:
    with pytest.raises(BadData, match="folder: subject 3 is in both train and test"):
        har.pack_subjects({3: samples(4), 5: samples(1)}, {3: samples(1)}, HERE)


def test_there_must_be_somebody_on_either_side() -> None:
    with pytest.raises(BadData, match="folder has no train subjects"):
        har.pack_subjects({}, {3: samples(1)}, HERE)
    with pytest.raises(BadData, match="folder has no test subjects"):
        har.pack_subjects({3: samples(1)}, {}, HERE)


SUBJECTS = {"train": [1, 1, 3, 3, 3], "test": [2, 4]}
LABELS = {"train": [5, 1, 2, 3, 4], "test": [6, 1]}


def value(part: str, channel: int, row: int) -> float:
    return (channel + 1) * 0.1 + row * 0.001 + (5 if part == "test" else 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Seven windows of four subjects in the official format."""
    for part in ("train", "test"):
        signals = tmp_path / part / "Inertial Signals"
        signals.mkdir(parents=True)
        (tmp_path / part / f"subject_{part}.txt").write_text("".join(f"{who}\n" for who in SUBJECTS[part]))
        (tmp_path / part / f"y_{part}.txt").write_text("".join(f"{label}\n" for label in LABELS[part]))
        for channel, signal in enumerate(SIGNALS):
            lines = [" ".join([f" {value(part, channel, row):.7e}"] * 128) for row in range(len(SUBJECTS[part]))]
            (signals / f"{signal}_{part}.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def change(path: Path, row: int, old: str, new: str, count: int = 1) -> None:
    """Replace text in one line of a file; rows count from 1."""
    lines = path.read_text().splitlines()
    assert old in lines[row - 1]
    lines[row - 1] = lines[row - 1].replace(old, new, count)
    path.write_text("\n".join(lines) + "\n")


def test_every_window_goes_to_its_subject(folder: Path) -> None:
    made = har.read_uci(folder)
    assert made.meta == {
        "names": ["s01", "s03"],
        "lengths": [2, 3],
        "test_names": ["s02", "s04"],
        "test_lengths": [1, 1],
    }
    assert list(made.arrays["y"]) == [4, 0, 1, 2, 3]
    assert list(made.arrays["test_y"]) == [5, 0]
    assert made.arrays["x"].dtype == np.float32
    expected = [[value("train", channel, row) for channel in range(9)] for row in range(5)]
    np.testing.assert_allclose(made.arrays["x"], np.array(expected)[:, :, None] * np.ones(128), rtol=1e-6)


def test_windows_of_a_subject_need_not_stand_together(folder: Path) -> None:
    (folder / "train" / "subject_train.txt").write_text("3\n1\n3\n1\n3\n")
    made = har.read_uci(folder)
    assert made.meta["lengths"] == [2, 3]
    assert list(made.arrays["y"]) == [0, 2, 4, 1, 3]


def test_exponents_of_three_digits_are_numbers(folder: Path) -> None:
    path = folder / "test" / "Inertial Signals" / "body_acc_x_test.txt"
    path.write_text((" -1.8085150e-004" * 128 + "\n") * 2)
    np.testing.assert_allclose(har.read_uci(folder).arrays["test_x"][:, 3], -1.808515e-4)


@pytest.mark.parametrize("name", ["train/y_train.txt", "test/Inertial Signals/body_gyro_z_test.txt"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(MissingData, match=f"{Path(name).name} is missing"):
        har.read_uci(folder)


def test_fewer_labels_than_subjects(folder: Path) -> None:
    (folder / "train" / "y_train.txt").write_text("5\n1\n")
    with pytest.raises(BadData, match=r"y_train\.txt has 2 lines, but subject_train\.txt has 5"):
        har.read_uci(folder)


def test_fewer_windows_than_subjects(folder: Path) -> None:
    path = folder / "train" / "Inertial Signals" / "total_acc_y_train.txt"
    path.write_text("\n".join(path.read_text().splitlines()[:4]))
    with pytest.raises(BadData, match=r"total_acc_y_train\.txt has 4 lines, but there are 5 windows"):
        har.read_uci(folder)


@pytest.mark.parametrize("label", ["0", "7", "-1", "1.5", "walking", ""])
def test_an_activity_that_does_not_exist(folder: Path, label: str) -> None:
    (folder / "train" / "y_train.txt").write_text(f"5\n1\n{label}\n3\n4\n")
    with pytest.raises(BadData, match=rf"y_train\.txt, line 3: activity is '{label}'; it must be 1 to 6"):
        har.read_uci(folder)


def test_a_subject_that_does_not_exist(folder: Path) -> None:
    change(folder / "test" / "subject_test.txt", 2, "4", "31")
    with pytest.raises(BadData, match=r"subject_test\.txt, line 2: subject is '31'; it must be 1 to 30"):
        har.read_uci(folder)


def test_a_subject_in_both_parts(folder: Path) -> None:
    change(folder / "test" / "subject_test.txt", 1, "2", "3")
    with pytest.raises(BadData, match="subject 3 is in both train and test"):
        har.read_uci(folder)


@pytest.mark.parametrize("name", ["subject_train.txt", "y_train.txt", "Inertial Signals/total_acc_x_train.txt"])
def test_an_empty_file(folder: Path, name: str) -> None:
    (folder / "train" / name).write_text("")
    with pytest.raises(BadData, match=rf"{Path(name).name} (is empty|has 0 lines)"):
        har.read_uci(folder)


@pytest.mark.parametrize("word", ["NaN", "inf", "1e99"])
def test_a_reading_that_is_not_finite(folder: Path, word: str) -> None:
    path = folder / "train" / "Inertial Signals" / "total_acc_x_train.txt"
    change(path, 4, "1.0300000e-01", word)
    with pytest.raises(
        BadData, match=rf"total_acc_x_train\.txt, line 4 \(subject 3\): reading 1 is '{word}'; it must be a finite"
    ):
        har.read_uci(folder)


@pytest.mark.parametrize("word", ["abc", "1,5", "#1"])
def test_a_reading_that_is_not_a_number(folder: Path, word: str) -> None:
    path = folder / "train" / "Inertial Signals" / "total_acc_x_train.txt"
    change(path, 2, "1.0100000e-01", word)
    with pytest.raises(BadData, match=rf"line 2 \(subject 1\): reading 1 is '{word}'"):
        har.read_uci(folder)


@pytest.mark.parametrize("kept", [0, 1, 127])
def test_a_line_that_was_cut_off(folder: Path, kept: int) -> None:
    path = folder / "test" / "Inertial Signals" / "body_gyro_x_test.txt"
    lines = path.read_text().splitlines()
    path.write_text(lines[0] + "\n" + " ".join(lines[1].split()[:kept]) + "\n")
    with pytest.raises(BadData, match=rf"line 2 \(subject 4\): {kept} readings; there must be 128"):
        har.read_uci(folder)


def test_lines_all_of_another_length(folder: Path) -> None:
    path = folder / "test" / "Inertial Signals" / "body_gyro_x_test.txt"
    path.write_text("1.0 2.0\n3.0 4.0\n")
    with pytest.raises(BadData, match=r"line 1 \(subject 2\): 2 readings; there must be 128"):
        har.read_uci(folder)


def test_a_file_that_is_not_text(folder: Path) -> None:
    (folder / "train" / "y_train.txt").write_bytes(b"\xff\xfe5\n")
    with pytest.raises(BadData, match=r"y_train\.txt is not a text file of numbers"):
        har.read_uci(folder)


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
    made = har.read_hapt(saved(tmp_path, recordings()))
    assert made.meta == {"names": ["s01"], "lengths": [3], "test_names": ["s02"], "test_lengths": [5]}
    assert list(made.arrays["y"]) == [4, 4, 0]
    assert list(made.arrays["test_y"]) == [2] * 5
    assert made.arrays["x"].shape == (3, 9, 128)
    assert made.arrays["x"].dtype == np.float32


def test_windows_are_cut_out_of_the_filtered_recording_at_their_labels(tmp_path: Path) -> None:
    data = recordings()
    made = har.read_hapt(saved(tmp_path, data))
    first = har.filter_recording(data["acc"][:400] / 720.0, data["gyro"][:400] / 3274.0)
    second = har.filter_recording(data["acc"][400:800] / 720.0, data["gyro"][400:800] / 3274.0)
    np.testing.assert_array_equal(made.arrays["x"][0], first[9:137].T)
    np.testing.assert_array_equal(made.arrays["x"][1], first[73:201].T)
    np.testing.assert_array_equal(made.arrays["x"][2], second[0:128].T)


def test_a_phone_at_rest_has_gravity_and_no_body_acceleration() -> None:
    acc, gyro = np.tile([0.8, -0.5, 0.3], (300, 1)), np.tile([0.1, 0.0, -0.1], (300, 1))
    np.testing.assert_allclose(
        har.filter_recording(acc, gyro), np.tile([0.8, -0.5, 0.3, 0, 0, 0, 0.1, 0, -0.1], (300, 1)), atol=1e-6
    )


def test_steps_are_body_acceleration_and_slow_turns_are_gravity() -> None:
    time_s = np.arange(3000)[:, None] / 50
    steps, turn = np.sin(2 * np.pi * 2.0 * time_s), np.sin(2 * np.pi * 0.02 * time_s)
    still = np.zeros((3000, 3))
    for signal, share in ((steps, 1.0), (turn, 0.0)):
        channels = har.filter_recording(signal * np.ones(3), still)[1000:]
        assert np.ptp(channels[:, 0]) == pytest.approx(2, rel=0.05)
        assert np.ptp(channels[:, 3]) == pytest.approx(2 * share, abs=0.3)


def test_a_single_wild_reading_is_taken_out() -> None:
    acc = np.ones((200, 3))
    acc[100] = 50
    np.testing.assert_allclose(har.filter_recording(acc, np.zeros((200, 3)))[:, :3], 1, atol=1e-6)


def test_filters_are_causal() -> None:
    rng = np.random.default_rng(1)
    acc, gyro = rng.normal(size=(300, 3)), rng.normal(size=(300, 3))
    whole, start = har.filter_recording(acc, gyro), har.filter_recording(acc[:200], gyro[:200])
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
        har.read_hapt(saved(tmp_path, arrays))


def test_an_array_that_is_missing(tmp_path: Path) -> None:
    arrays = recordings()
    del arrays["labels"]
    with pytest.raises(BadData, match=r"raw\.npz is not a \.npz file of the raw recordings.*labels"):
        har.read_hapt(saved(tmp_path, arrays))


@pytest.mark.parametrize("content", [b"", b"hello", "cut"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes | str) -> None:
    path = saved(tmp_path, recordings())
    path.write_bytes(path.read_bytes()[:5000] if isinstance(content, str) else content)
    with pytest.raises(BadData, match=r"raw\.npz is not a \.npz file of the raw recordings"):
        har.read_hapt(path)


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"raw\.npz is not a \.npz file"):
        har.read_hapt(saved(tmp_path, {**recordings(), "acc": np.array([[None] * 3])}))
