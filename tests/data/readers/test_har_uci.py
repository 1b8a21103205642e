"""The official folder, as the archive gives it: read line by line, and every fault named with its place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedbalancer.core.errors import BadData, MissingData
from fedbalancer.data.readers import har as har_uci
from fedbalancer.data.readers.har import SIGNALS

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
    made = har_uci.read_uci(folder)
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
    made = har_uci.read_uci(folder)
    assert made.meta["lengths"] == [2, 3]
    assert list(made.arrays["y"]) == [0, 2, 4, 1, 3]


def test_exponents_of_three_digits_are_numbers(folder: Path) -> None:
    path = folder / "test" / "Inertial Signals" / "body_acc_x_test.txt"
    path.write_text((" -1.8085150e-004" * 128 + "\n") * 2)
    np.testing.assert_allclose(har_uci.read_uci(folder).arrays["test_x"][:, 3], -1.808515e-4)


@pytest.mark.parametrize("name", ["train/y_train.txt", "test/Inertial Signals/body_gyro_z_test.txt"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(MissingData, match=f"{Path(name).name} is missing"):
        har_uci.read_uci(folder)


def test_fewer_labels_than_subjects(folder: Path) -> None:
    (folder / "train" / "y_train.txt").write_text("5\n1\n")
    with pytest.raises(BadData, match=r"y_train\.txt has 2 lines, but subject_train\.txt has 5"):
        har_uci.read_uci(folder)


def test_fewer_windows_than_subjects(folder: Path) -> None:
    path = folder / "train" / "Inertial Signals" / "total_acc_y_train.txt"
    path.write_text("\n".join(path.read_text().splitlines()[:4]))
    with pytest.raises(BadData, match=r"total_acc_y_train\.txt has 4 lines, but there are 5 windows"):
        har_uci.read_uci(folder)


@pytest.mark.parametrize("label", ["0", "7", "-1", "1.5", "walking", ""])
def test_an_activity_that_does_not_exist(folder: Path, label: str) -> None:
    (folder / "train" / "y_train.txt").write_text(f"5\n1\n{label}\n3\n4\n")
    with pytest.raises(BadData, match=rf"y_train\.txt, line 3: activity is '{label}'; it must be 1 to 6"):
        har_uci.read_uci(folder)


def test_a_subject_that_does_not_exist(folder: Path) -> None:
    change(folder / "test" / "subject_test.txt", 2, "4", "31")
    with pytest.raises(BadData, match=r"subject_test\.txt, line 2: subject is '31'; it must be 1 to 30"):
        har_uci.read_uci(folder)


def test_a_subject_in_both_parts(folder: Path) -> None:
    change(folder / "test" / "subject_test.txt", 1, "2", "3")
    with pytest.raises(BadData, match="subject 3 is in both train and test"):
        har_uci.read_uci(folder)


@pytest.mark.parametrize("name", ["subject_train.txt", "y_train.txt", "Inertial Signals/total_acc_x_train.txt"])
def test_an_empty_file(folder: Path, name: str) -> None:
    (folder / "train" / name).write_text("")
    with pytest.raises(BadData, match=rf"{Path(name).name} (is empty|has 0 lines)"):
        har_uci.read_uci(folder)


@pytest.mark.parametrize("word", ["NaN", "inf", "1e99"])
def test_a_reading_that_is_not_finite(folder: Path, word: str) -> None:
    path = folder / "train" / "Inertial Signals" / "total_acc_x_train.txt"
    change(path, 4, "1.0300000e-01", word)
    with pytest.raises(
        BadData, match=rf"total_acc_x_train\.txt, line 4 \(subject 3\): reading 1 is '{word}'; it must be a finite"
    ):
        har_uci.read_uci(folder)


@pytest.mark.parametrize("word", ["abc", "1,5", "#1"])
def test_a_reading_that_is_not_a_number(folder: Path, word: str) -> None:
    path = folder / "train" / "Inertial Signals" / "total_acc_x_train.txt"
    change(path, 2, "1.0100000e-01", word)
    with pytest.raises(BadData, match=rf"line 2 \(subject 1\): reading 1 is '{word}'"):
        har_uci.read_uci(folder)


@pytest.mark.parametrize("kept", [0, 1, 127])
def test_a_line_that_was_cut_off(folder: Path, kept: int) -> None:
    path = folder / "test" / "Inertial Signals" / "body_gyro_x_test.txt"
    lines = path.read_text().splitlines()
    path.write_text(lines[0] + "\n" + " ".join(lines[1].split()[:kept]) + "\n")
    with pytest.raises(BadData, match=rf"line 2 \(subject 4\): {kept} readings; there must be 128"):
        har_uci.read_uci(folder)


def test_lines_all_of_another_length(folder: Path) -> None:
    path = folder / "test" / "Inertial Signals" / "body_gyro_x_test.txt"
    path.write_text("1.0 2.0\n3.0 4.0\n")
    with pytest.raises(BadData, match=r"line 1 \(subject 2\): 2 readings; there must be 128"):
        har_uci.read_uci(folder)


def test_a_file_that_is_not_text(folder: Path) -> None:
    (folder / "train" / "y_train.txt").write_bytes(b"\xff\xfe5\n")
    with pytest.raises(BadData, match=r"y_train\.txt is not a text file of numbers"):
        har_uci.read_uci(folder)
