"""LEAF's Reddit JSON is read unchanged, and errors name file, user and comment."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedbalancer.core.errors import BadData, MissingData
from fedbalancer.data.readers.reddit import cut_sequences, read_reddit


def comment(text: str) -> tuple[list[Any], dict[str, Any]]:
    parts = cut_sequences(text.split())
    label = {
        "subreddit": "ask",
        "created_utc": 1512086400,
        "score": 3,
        "target_tokens": [part.targets for part in parts],
        "count_tokens": [[float(token != "<PAD>") for token in part.inputs] for part in parts],
    }
    return [part.inputs for part in parts], label


def document(**users: list[str]) -> dict[str, Any]:
    """As LEAF's script writes it: the counts are of all comments of a user, not of those of this part."""
    made = {user: [comment(text) for text in texts] for user, texts in users.items()}
    return {
        "users": list(users),
        "num_samples": [10 for _ in users],
        "user_data": {user: {"x": [x for x, _ in pairs], "y": [y for _, y in pairs]} for user, pairs in made.items()},
    }


def write(folder: Path, train: object, test: object) -> Path:
    for part, content in (("train", train), ("val", test), ("test", test)):
        (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / part / f"reddit_0_{part}.json").write_text(json.dumps(content))
    return folder


def test_sequences_of_all_comments_are_read_in_their_order(tmp_path: Path) -> None:
    long = "one two three four five six seven eight nine ten eleven"
    train, test = read_reddit(write(tmp_path, document(ann=["hi there", long], bob=["x"]), document(ann=["bye"])))
    assert list(train) == ["ann", "bob"]
    assert train["ann"] == [*cut_sequences(["hi", "there"]), *cut_sequences(long.split())]
    assert test == {"ann": cut_sequences(["bye"])}


def broken(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    return lambda data: change(data["user_data"]["ann"])


BAD: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "x and y of different length": (broken(lambda ann: ann["y"].pop()), "has 2 x but 1 y: sample 1 has no label"),
    "no samples": (broken(lambda ann: (ann["x"].clear(), ann["y"].clear())), "has no samples"),
    "no y": (broken(lambda ann: ann.pop("y")), "the lists x and y"),
    "no data": (lambda data: data["user_data"].pop("ann"), "the lists x and y"),
    "twice": (lambda data: (data["users"].append("ann"), data["num_samples"].append(10)), "occurs twice"),
    "a short sequence": (broken(lambda ann: ann["x"][1][0].pop()), "comment 1: x must be a list of sequences of 10"),
    "a number": (broken(lambda ann: ann["x"][1][0].__setitem__(3, 17)), "comment 1: x must be a list of sequences"),
    "no targets": (broken(lambda ann: ann["y"][0].pop("target_tokens")), "comment 0: target_tokens of y must be"),
    "label": (broken(lambda ann: ann["y"].__setitem__(0, 5)), "comment 0: target_tokens of y must be"),
    "more targets": (
        broken(lambda ann: ann["y"][0]["target_tokens"].append(["a"] * 10)),
        "comment 0 has 1 sequences in x but 2",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_users_are_named(tmp_path: Path, name: str) -> None:
    change, reason = BAD[name]
    data = document(ann=["hi", "there you are"], bob=["x"])
    change(data)
    with pytest.raises(BadData, match=rf"reddit_0_train\.json: user 'ann'.*{reason}"):
        read_reddit(write(tmp_path, data, document(ann=["bye"])))


def test_the_same_user_in_two_files_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, document(ann=["hi"]), document(ann=["bye"]))
    (folder / "train" / "reddit_1_train.json").write_text(json.dumps(document(ann=["hi"])))
    with pytest.raises(BadData, match=r"reddit_1_train\.json: user 'ann' occurs twice"):
        read_reddit(folder)


def test_files_that_are_no_leaf_json_are_told(tmp_path: Path) -> None:
    folder = write(tmp_path, document(ann=["hi"]), document(ann=["bye"]))
    file = folder / "train" / "reddit_0_train.json"
    file.write_text(file.read_text()[:-20])
    with pytest.raises(BadData, match=r"reddit_0_train\.json is damaged or not JSON"):
        read_reddit(folder)
    file.write_text("[]")
    with pytest.raises(BadData, match=r"reddit_0_train\.json has no list 'users'"):
        read_reddit(folder)


def test_a_folder_without_test_or_without_files_is_told(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="has no LEAF data"):
        read_reddit(tmp_path)
    folder = write(tmp_path, document(ann=["hi"]), document(ann=["bye"]))
    (folder / "test" / "reddit_0_test.json").unlink()
    with pytest.raises(BadData, match=r"has no test/\*\.json"):
        read_reddit(folder)
