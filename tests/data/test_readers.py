"""JSON of LEAF, and untrusted .npz files."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.errors import BadData, BadSetting, MissingData
from fedbalancer.core.task import Samples
from fedbalancer.data.readers import (
    UserSplit,
    hold_out,
    leaf_files,
    leaf_users,
    pack,
    read_npz,
    split_by_user,
    unpack,
)

SHAPES = {"x": (2,), "y": ()}


def test_named_arrays_come_back_and_others_are_left(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((3, 2)), y=np.arange(3), z=np.zeros(9))
    assert set(read_npz(tmp_path / "a.npz", SHAPES)) == {"x", "y"}


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({"x": np.ones((3, 2))}, "y"),
        ({"x": np.ones((3, 4)), "y": np.arange(3)}, r"'x' has shape \(3, 4\); it must be \(3, 2\)"),
        ({"x": np.ones((3, 2)), "y": np.arange(4)}, "'y' has shape"),
        ({"x": np.ones((0, 2)), "y": np.arange(0)}, "no samples"),
        ({"x": np.ones((3, 2)), "y": np.array([None, 1, 2], dtype=object)}, "damaged"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, arrays: dict[str, np.ndarray], named: str) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **arrays)
    with pytest.raises(BadData, match=named) as error:
        read_npz(path, SHAPES)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("keep", [0, 30, 300])
def test_a_truncated_file_is_damaged(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).normal(size=(30, 2)), y=np.arange(30))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BadData, match="damaged"):
        read_npz(path, SHAPES)


Users = dict[str, tuple[list[Any], list[Any]]]
ANN_AND_BOB: Users = {"ann": ([[0.5], [1.0]], [3, 4]), "bob": ([[0.0]], [61])}


def document(users: Users) -> dict[str, Any]:
    return {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in users.items()},
    }


def read_leaf(folder: Path) -> dict[str, Users]:
    return {
        part: {user.name: (user.x, user.y) for user in leaf_users(files)} for part, files in leaf_files(folder).items()
    }


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize("base", [".", "data"])
def test_train_and_test_folders_are_read_in_the_order_of_files_and_users(tmp_path: Path, base: str) -> None:
    write(tmp_path / base / "train" / "all_data_1_niid_2_keep_0_train_9.json", document({"cas": ([1], [2])}))
    write(tmp_path / base / "train" / "all_data_0_niid_2_keep_0_train_9.json", document(ANN_AND_BOB))
    write(tmp_path / base / "test" / "all_data_0_niid_2_keep_0_test_9.json", document({"dan": ([5], [6])}))
    split = read_leaf(tmp_path)
    assert split["train"] == {**ANN_AND_BOB, "cas": ([1], [2])}
    assert list(split["train"]) == ["ann", "bob", "cas"]
    assert split["test"] == {"dan": ([5], [6])}
    assert not split["val"]


def test_a_split_by_time_has_the_same_users_in_all_parts(tmp_path: Path) -> None:
    for number, part in enumerate(("train", "val", "test")):
        write(tmp_path / part / "reddit.json", document({"1": ([[["hello", "world"]]], [{"score": number}])}))
    split = read_leaf(tmp_path)
    assert [part["1"][1][0]["score"] for part in split.values()] == [0, 1, 2]


def test_files_without_a_split_are_all_training(tmp_path: Path) -> None:
    write(tmp_path / "all_data.json", document(ANN_AND_BOB))
    split = read_leaf(tmp_path)
    assert split["train"] == ANN_AND_BOB
    assert not split["test"]


def test_other_keys_and_the_empty_shells_of_a_split_by_sample_are_left_out(tmp_path: Path) -> None:
    content = document(ANN_AND_BOB)
    content["hierarchies"] = ["a", "b"]
    content["user_data"]["shell"] = {"x": [], "y": []}
    write(tmp_path / "train" / "one.json", content)
    assert list(read_leaf(tmp_path)["train"]) == ["ann", "bob"]


def test_a_folder_without_json_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"train/\*\.json"):
        leaf_files(tmp_path)
    (tmp_path / "train").mkdir()
    with pytest.raises(MissingData, match=r"train/\*\.json"):
        read_leaf(tmp_path)


def broken(change: Any) -> dict[str, Any]:
    content = deepcopy(document(ANN_AND_BOB))
    change(content)
    return content


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (json.dumps(document(ANN_AND_BOB))[:-9], ["damaged"]),
        ("", ["damaged"]),
        ("[1, 2]", ["'users'"]),
        (broken(lambda c: c.pop("users")), ["'users'"]),
        (broken(lambda c: c.pop("num_samples")), ["'num_samples'"]),
        (broken(lambda c: c.update(user_data=[])), ["'user_data'"]),
        (broken(lambda c: c["num_samples"].append(1)), ["2 users", "3"]),
        (broken(lambda c: c["user_data"].pop("bob")), ["'bob'", "number 1", "x and y"]),
        (broken(lambda c: c["user_data"]["bob"].pop("y")), ["'bob'", "x and y"]),
        (broken(lambda c: c["user_data"]["bob"].update(x="pixels")), ["'bob'", "x and y"]),
        (broken(lambda c: c["users"].__setitem__(1, 7)), ["user 7", "user_data"]),
        (broken(lambda c: c["user_data"]["ann"]["y"].pop()), ["'ann'", "2 x but 1 y", "sample 1 has no label"]),
        (broken(lambda c: c["user_data"]["ann"]["x"].pop()), ["'ann'", "1 x but 2 y", "sample 1 has no features"]),
        (broken(lambda c: c["user_data"]["bob"].update(x=[], y=[])), ["'bob'", "number 1", "no samples"]),
        (broken(lambda c: c["num_samples"].__setitem__(0, 5)), ["'ann'", "2 samples", "5"]),
        (broken(lambda c: c.update(users=["ann", "ann"], num_samples=[2, 2])), ["'ann'", "twice"]),
        ('{"users": ["a"], "num_samples": [1], "user_data": {"a": {}, "a": {"x": [1], "y": [1]}}}', ["'a'", "twice"]),
    ],
)
def test_errors_name_file_user_and_index(tmp_path: Path, content: Any, named: list[str]) -> None:
    file = write(tmp_path / "train" / "broken.json", content)
    with pytest.raises(BadData) as error:
        read_leaf(tmp_path)
    message = str(error.value)
    assert "\n" not in message
    for part in [str(file), *named]:
        assert part in message


def test_a_user_in_two_files_is_named_with_both(tmp_path: Path) -> None:
    first = write(tmp_path / "train" / "a.json", document(ANN_AND_BOB))
    second = write(tmp_path / "train" / "b.json", document({"bob": ([1], [1])}))
    with pytest.raises(BadData, match="'bob' occurs twice") as error:
        read_leaf(tmp_path)
    assert str(first) in str(error.value)
    assert str(second) in str(error.value)


def test_bytes_that_are_no_text_are_damaged(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b"\xff\xfe\xfa{")
    with pytest.raises(BadData, match=r"x\.json is damaged"):
        read_leaf(tmp_path)


def test_one_file_is_in_memory_at_a_time(tmp_path: Path) -> None:
    """A broken second file is noticed only when the users of the first have been given."""
    files = [write(tmp_path / "a.json", document(ANN_AND_BOB)), write(tmp_path / "b.json", "{")]
    users = leaf_users(files)
    assert [next(users).name, next(users).name] == ["ann", "bob"]
    with pytest.raises(BadData, match=r"b\.json"):
        next(users)


samples = st.integers(1, 4).flatmap(
    lambda n: st.tuples(*(st.lists(st.integers(), min_size=n, max_size=n) for _ in range(2)))
)


@given(users=st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), samples, min_size=1, max_size=5))
def test_any_users_come_back_as_written(tmp_path_factory: pytest.TempPathFactory, users: Users) -> None:
    folder = tmp_path_factory.mktemp("leaf")
    write(folder / "all_data.json", document(users))
    assert read_leaf(folder)["train"] == users


def users(sizes: list[int], first: int = 0) -> dict[str, Samples]:
    """User k has `sizes[k]` samples, all with the number k as feature and label."""
    return {
        f"u{k}": (np.full((size, 2), k, dtype=np.float32), np.full(size, k))
        for k, size in enumerate(sizes, start=first)
    }


@given(count=st.integers(2, 200), share=st.floats(0.0, 1.0), seed=st.integers(0, 9))
def test_every_user_is_in_one_of_two_groups_that_are_never_empty(count: int, share: float, seed: int) -> None:
    names = [f"u{k}" for k in range(count)]
    train, test = split_by_user(names, share, seed)
    assert sorted(train + test) == sorted(names)
    assert len(train) == min(max(1, int(share * count)), count - 1)
    assert (train, test) == split_by_user(names, share, seed)


def test_the_published_numbers_of_users() -> None:
    """LEAF rounds down the training users; the paper's 641 and 72 of FEMNIST are of 713."""
    assert [len(part) for part in split_by_user([str(k) for k in range(713)])] == [641, 72]


def test_the_seed_decides_who() -> None:
    names = [f"u{k}" for k in range(50)]
    assert split_by_user(names, seed=1) != split_by_user(names, seed=2)


def test_one_user_cannot_be_split() -> None:
    with pytest.raises(BadData, match="at least 2 users, not 1"):
        split_by_user(["ann"])


@given(sizes=st.lists(st.integers(1, 5), min_size=2, max_size=12))
def test_every_sample_comes_back_with_its_user(sizes: list[int]) -> None:
    split = hold_out(users(sizes))
    clients, test = unpack(pack(split), None)
    assert set(clients) == set(split.train)
    for name, (features, labels) in clients.items():
        np.testing.assert_array_equal(features, split.train[name][0])
        np.testing.assert_array_equal(labels, split.train[name][1])
    assert sorted(test[1]) == sorted(label for _, labels in split.test.values() for label in labels)


def test_fewer_users_are_a_random_choice_and_nested() -> None:
    data = pack(UserSplit(users([1] * 20), users([3] * 10, first=20)))
    few, test = unpack(data, 5, test_users=2)
    more, _ = unpack(data, None, 6, 2)
    assert list(more)[:5] == list(few)
    assert list(few) != [f"u{k}" for k in range(5)]
    assert len(test[1]) == 6
    assert len(few.features) == 5


@pytest.mark.parametrize("count", [0, 4])
def test_more_users_than_there_are_is_an_error(count: int) -> None:
    with pytest.raises(BadSetting, match=f"users is {count}, but the data can have 1 to 3"):
        unpack(pack(UserSplit(users([1, 2, 3]), users([1]))), count)
