"""`Task.from_arrays`: what goes in comes out by client, and mistakes are named by row, user and option."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedbalancer as fb
from fedbalancer.core.errors import BadData, BadSetting, UnknownName

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
        ({"x": [[1, 2], [3]]}, BadData, "the same shape"),
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
