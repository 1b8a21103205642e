"""Tasks from arrays, files and folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbalancer as fb
from fedbalancer.core.errors import BadData, BadSetting, UnknownName
from fedbalancer.data.own.build import from_npz

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3)).astype(np.float32)
Y = np.arange(60) % 3
USERS = np.array(["ann", "bob", "cy", "di", "ed"])[np.arange(60) % 5]


def make(**changes: Any) -> fb.Task:
    values: dict[str, Any] = {"x": X, "y": Y, "model": "mlp", "users": USERS}
    values.update(changes)
    return fb.Task.from_arrays(values.pop("x"), values.pop("y"), **values)


def test_every_user_has_the_rows_of_their_own() -> None:
    task = make(test=(X[:4], Y[:4]))
    assert list(task.clients) == ["ann", "bob", "cy", "di", "ed"]
    for user, (features, labels) in task.clients.items():
        np.testing.assert_array_equal(features, X[user == USERS])
        np.testing.assert_array_equal(labels, Y[user == USERS])
    np.testing.assert_array_equal(task.test[0], X[:4])
    assert task.classes == 3


def test_users_are_held_out_whole() -> None:
    task = make(test_share=0.4)
    held_out = task.notes["held_out"]
    assert len(held_out) == 2
    assert set(held_out) | set(task.clients) == set(USERS)
    assert not set(held_out) & set(task.clients)
    assert len(task.test[1]) == 24
    assert make(test_share=0.4).notes["held_out"] == held_out
    assert len({tuple(make(test_share=0.4, seed=seed).notes["held_out"]) for seed in range(8)}) > 1


def test_samples_are_held_out_where_there_are_no_users() -> None:
    task = make(users=None, partition="dirichlet", clients=4, alpha=1.0, test_share=0.2)
    assert list(task.clients) == [f"client-{number}" for number in range(4)]
    assert len(task.test[1]) == 12
    rows = np.concatenate([task.test[0], *(features for features, _ in task.clients.values())])
    np.testing.assert_array_equal(np.sort(rows[:, 0]), np.sort(X[:, 0]))


def test_settings_reach_the_task() -> None:
    task = make(name="mine", rounds=7, learning_rate=0.5, latency={"slow": (3, 1), "mid": (2, 1), "fast": (1, 0)})
    assert (task.name, task.rounds, task.learning_rate) == ("mine", 7, 0.5)
    assert task.clients_per_round == 4  # no more than there are


def test_labels_may_be_text_or_whole_floats() -> None:
    names = np.array(["sit", "walk", "run"])[Y]
    task = make(y=names)
    assert task.notes["labels"] == ["run", "sit", "walk"]
    assert task.classes == 3
    someone = next(iter(task.clients))
    named = np.array(task.notes["labels"])[task.clients[someone][1]]
    np.testing.assert_array_equal(named, names[someone == USERS])
    assert make(y=names.astype(object)).notes["labels"] == ["run", "sit", "walk"]
    assert make(y=Y.astype(float)).clients[someone][1].dtype == np.int64
    assert make(y=Y > 0).classes == 2


def test_a_loss_of_ones_own_keeps_floats() -> None:
    def squares(outputs: Any, labels: Any) -> Any:
        return (outputs[:, 0] - labels) ** 2

    task = make(y=X[:, 0] / 2, loss=squares, classes=1)
    assert all(labels.dtype.kind == "f" for _, labels in task.clients.values())
    with pytest.raises(BadSetting, match="needs the number of outputs"):
        make(y=X[:, 0] / 2, loss=squares)


def nan_at(row: int) -> Any:
    broken = X.copy()
    broken[row, 1] = np.nan
    return broken


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"users": None}, BadSetting, "specify the users"),
        ({"partition": "iid", "clients": 2}, BadSetting, "for data without users"),
        ({"users": None, "partition": "dirichlett", "clients": 2}, UnknownName, "did you mean dirichlet"),
        ({"users": None, "partition": "iid"}, BadSetting, "needs clients"),
        ({"users": None, "partition": "iid", "clients": 99}, BadSetting, "clients = 99 .* from 1 to 54"),
        ({"users": None, "partition": "iid", "clients": 2, "alpha": 1}, BadSetting, "alpha = 1 requires .* dirichlet"),
        ({"clients": 3}, BadSetting, "clients = 3 requires partition"),
        ({"test_share": 1.5}, BadSetting, "test_share = 1.5 must be"),
        ({"test_share": 0.5, "test": (X, Y)}, BadSetting, "cannot be combined with test data"),
        ({"seed": -1}, BadSetting, "seed = -1"),
        ({"users": USERS[:7]}, BadData, "60 labels but 7 users"),
        ({"users": ["ann"] * 60}, BadData, "one user, 'ann'"),
        ({"users": [None, *USERS[1:]]}, BadData, "row 0 has no user"),
        ({"x": nan_at(7)}, BadData, r"NaN or infinite feature in row 7 \(user 'cy'\)"),
        ({"x": X[:5]}, BadData, "5 rows of features but 60 labels"),
        ({"x": X.astype(str)}, BadData, "must be numbers"),
        ({"x": [[1, 2], [3]]}, BadData, "the data has 2 rows of features but"),
        ({"x": [[[1, 2]], [3]]}, BadData, "must be .features, labels., two arrays of the same length"),
        ({"x": [[1, 2], *([[3]] * (len(Y) - 1))]}, BadSetting, "a model by name takes one array of features"),
        ({"x": X[:0], "y": Y[:0]}, BadData, "no samples"),
        ({"y": Y - 1}, BadData, "label -1 in sample"),
        ({"y": Y + 0.5}, BadData, "label [012].5 in sample"),
        ({"y": Y * 10**6}, BadData, "set classes"),
        ({"classes": 2}, BadData, "label 2 in sample .* 0 to 1"),
        ({"classes": 0}, BadSetting, "classes = 0"),
        ({"test": (X[:, :2], Y)}, BadData, r"the test data has samples of shape \(2,\)"),
        ({"test": (X, np.array(["a"] * 60))}, BadData, "labels of the test data are text, but those of client 'ann'"),
        ({"test": X}, BadData, "test must be"),
        ({"learningrate": 1}, UnknownName, "did you mean learning_rate"),
        ({"learning_rate": -1}, BadSetting, "learning_rate = -1"),
        ({"latency": "tablet"}, UnknownName, "latency row"),
        ({"model": "mpl"}, UnknownName, "did you mean mlp"),
        ({"model": 3}, BadData, "model is 3"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        make(**changes)


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
    with pytest.raises(BadData, match=r"absent\.npz does not exist"):
        from_npz(tmp_path / "absent.npz", model="mlp")


def test_dictionaries_tuples_tensors_and_lists_of_lists_are_split_by_user() -> None:
    torch = pytest.importorskip("torch")

    def model() -> Any:
        return torch.nn.Linear(3, 3)

    plain = fb.Task.from_arrays(X, Y, users=USERS, model=model)
    lists = [row[: 1 + number % 2] for number, row in enumerate(X.tolist())]
    named = {"left": torch.tensor(X[:, :1], requires_grad=True), "right": lists}
    task = fb.Task.from_arrays(named, torch.tensor(Y), users=USERS, model=model)
    assert task.sizes == plain.sizes
    for client in plain.clients:
        features, labels = task.samples(client)
        np.testing.assert_array_equal(features["left"], plain.clients[client][0][:, :1])
        np.testing.assert_array_equal([row[0] for row in features["right"]], plain.clients[client][0][:, 0])
        np.testing.assert_array_equal(labels, plain.clients[client][1])
    pair = fb.Task.from_arrays((X[:, :1], X[:, 1:]), None, users=USERS, model=model)
    assert pair.test[1].shape[1:] == (0,)
    assert [part.shape[1:] for part in pair.test[0]] == [(1,), (2,)]
