"""`Task.from_folder` and one `.npz` with everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbalancer as fb
from fedbalancer.core.errors import BadData, BadSetting, UnknownName
from fedbalancer.data.own.build import from_npz


def save(folder: Path, user: str, **arrays: Any) -> None:
    rng = np.random.default_rng(len(user))
    values = {"x": rng.normal(size=(6, 2)), "y": np.arange(6) % 2, **arrays}
    np.savez(folder / f"{user}.npz", **{name: array for name, array in values.items() if array is not None})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for user in ("ann", "bob", "cy"):
        save(tmp_path, user)
    return tmp_path


def test_a_file_is_a_client_and_test_is_the_test(folder: Path) -> None:
    save(folder, "test", y=np.array([0, 1, 2, 2, 2, 2]))
    task = fb.Task.from_folder(folder, model="mlp", rounds=3)
    assert task.sizes == {"ann": 6, "bob": 6, "cy": 6}
    assert task.classes == 3  # also what only the test has
    assert (task.name, task.rounds) == (folder.name, 3)
    with np.load(folder / "bob.npz") as file:
        np.testing.assert_array_equal(task.clients["bob"][0], file["x"])


def test_clients_are_held_out_where_there_is_no_test(folder: Path) -> None:
    task = fb.Task.from_folder(folder, model="mlp", test_share=0.34, seed=3)
    (held_out,) = task.notes["held_out"]
    assert set(task.clients) == {"ann", "bob", "cy"} - {held_out}
    with np.load(folder / f"{held_out}.npz") as file:
        np.testing.assert_array_equal(task.test[0], file["x"])


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"y": None, "labels": np.arange(6)}, "unknown array in .*dan.npz 'y'"),
        ({"x": None, "X": np.zeros((6, 2))}, "unknown array in .*dan.npz 'x'; .*X"),
        ({"x": np.zeros((5, 2))}, r"dan.npz has 5 features but 6 labels"),
        ({"x": np.zeros((6, 3))}, r"client 'dan' \(dan.npz\) has samples of shape \(3,\), but client 'ann'"),
        ({"x": np.full((6, 2), np.nan)}, r"dan.npz has a NaN or infinite feature in sample 0"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, dtype=int)}, r"dan.npz has no samples"),
        ({"y": np.array([0, 1, -1, 0, 0, 0])}, r"dan.npz has label -1 in sample 2"),
        ({"x": np.array([["a", "b"]] * 6)}, "dan.npz has features of type <U1; they must be numbers"),
        ({"y": np.array(["a"] * 6)}, r"client 'dan' \(dan.npz\) are text, but those of client 'ann'"),
        ({"x": np.array([object()] * 6)}, "dan.npz is damaged or not an .npz file of plain arrays: .*pickle"),
        ({"x": np.array(3.0)}, "dan.npz must be"),
    ],
)
def test_a_bad_file_is_named(folder: Path, arrays: dict[str, Any], words: str) -> None:
    save(folder, "dan", **arrays)
    save(folder, "test")
    with pytest.raises((BadData, UnknownName), match=words):
        fb.Task.from_folder(folder, model="mlp")


def test_what_is_no_npz_is_told(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "ann.npz").read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"not a zip file"):
        (folder / "ann.npz").write_bytes(content)
        with pytest.raises(BadData, match=r"ann\.npz is damaged or not an \.npz file"):
            fb.Task.from_folder(folder, model="mlp")


def test_a_label_out_of_range_names_file_and_sample(folder: Path) -> None:
    save(folder, "dan", y=np.array([0, 1, 0, 5, 0, 0]))
    save(folder, "test")
    with pytest.raises(BadData, match=r"client 'dan' \(dan.npz\) has label 5 in sample 3; labels must be 0 to 1"):
        fb.Task.from_folder(folder, model="mlp", classes=2)


def test_folders_without_clients_and_options_of_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="does not exist"):
        fb.Task.from_folder(tmp_path / "absent", model="mlp")
    with pytest.raises(BadData, match="has no clients"):
        fb.Task.from_folder(tmp_path, model="mlp")
    save(tmp_path, "ann")
    with pytest.raises(BadData, match="one user, 'ann'"):
        fb.Task.from_folder(tmp_path, model="mlp")
    with pytest.raises(UnknownName, match="unknown option 'partition'"):
        fb.Task.from_folder(tmp_path, model="mlp", partition="iid")
    save(tmp_path, "test")
    with pytest.raises(BadSetting, match="cannot be combined with test data"):
        fb.Task.from_folder(tmp_path, model="mlp", test_share=0.2)


def test_one_file_may_hold_everything(tmp_path: Path) -> None:
    users = np.array(["ann", "bob"] * 3)
    save(tmp_path, "all", users=users, x_test=np.zeros((4, 2)), y_test=np.zeros(4, dtype=int))
    task = from_npz(tmp_path / "all.npz", model="mlp")
    assert task.sizes == {"ann": 3, "bob": 3}
    assert (len(task.test[1]), task.name) == (4, "all")
    shared = from_npz(tmp_path / "all.npz", model="mlp", partition="iid", clients=3)
    assert len(shared.clients) == 3
    with pytest.raises(UnknownName, match="'user'; did you mean users"):
        from_npz(tmp_path / "all.npz", model="mlp", user="user")
    save(tmp_path, "half", users=users, x_test=np.zeros((4, 2)))
    with pytest.raises(UnknownName, match="'y_test'"):
        from_npz(tmp_path / "half.npz", model="mlp")
    with pytest.raises(BadData, match=r"no file .*absent\.npz"):
        from_npz(tmp_path / "absent.npz", model="mlp")
