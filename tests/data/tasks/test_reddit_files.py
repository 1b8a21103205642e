"""Comments become sequences of numbers, and errors name file, user and comment."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.errors import BadData, MissingData
from fedbalancer.data.tasks.reddit import (
    LENGTH,
    PAD,
    PAD_WORD,
    UNKNOWN,
    build_vocabulary,
    cut_sequences,
    number_words,
    read_irc,
    read_reddit,
    split_words,
)


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


WORD = st.sampled_from(["a", "b", "c", "dog", "<url>"])


@given(st.lists(WORD, max_size=45))
def test_sequences_hold_the_comment_once_and_targets_are_one_ahead(words: list[str]) -> None:
    parts = cut_sequences(words)
    inputs = [token for part in parts for token in part.inputs]
    targets = [token for part in parts for token in part.targets]
    assert all(len(part.inputs) == len(part.targets) == LENGTH for part in parts)
    assert [token for token in inputs if token != PAD_WORD] == ["<BOS>", *words, "<EOS>"]
    assert [*inputs[1:], PAD_WORD] == targets


@given(st.lists(WORD, min_size=1, max_size=45), st.integers(3, 8))
def test_numbers_are_of_words_and_padding_does_not_count(words: list[str], size: int) -> None:
    parts = cut_sequences(words)
    known = build_vocabulary(parts, size)
    inputs, targets = number_words(parts, known, size)
    assert inputs.shape == targets.shape == (len(parts), LENGTH)
    assert inputs.dtype == targets.dtype == np.int16
    assert max(known.values()) < size
    assert inputs.max() < size
    counted = targets != size
    np.testing.assert_array_equal(counted, inputs != PAD)
    assert counted.sum() == len(words) + 2
    assert (targets[counted] == PAD).sum() == 1


def test_frequent_words_come_first_and_equals_by_the_alphabet() -> None:
    training = [part for words in (["b", "b", "a", "z"], ["b"]) for part in cut_sequences(words)]
    assert build_vocabulary(training, 6) == {PAD_WORD: 0, "b": 2, "<BOS>": 3, "<EOS>": 4, "a": 5}
    inputs, _ = number_words(training, build_vocabulary(training, 6), 6)
    assert inputs[0].tolist() == [3, 2, 2, 5, UNKNOWN, 4, 0, 0, 0, 0]


def write_messages(path: Path, *records: object) -> Path:
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    return path


def message(user: object, day: str, time: str, text: object) -> dict[str, object]:
    return {"user": user, "day": day, "t": time, "text": text}


def test_messages_are_in_order_of_time_and_empty_ones_are_left_out(tmp_path: Path) -> None:
    path = write_messages(
        tmp_path / "irc.xz",
        message(7, "2014-02-01", "10:00", "third"),
        message(7, "2014-01-31", "23:59", "second"),
        message(3, "2014-01-31", "23:59", "other"),
        message(7, "2014-01-31", "09:00", "first"),
        message(7, "2014-01-31", "09:30", "  é "),
    )
    assert read_irc(path) == {"user00007": [["first"], ["second"], ["third"]], "user00003": [["other"]]}


def test_words_are_lower_case_ascii_with_links_and_names_replaced() -> None:
    assert split_words("Bob: See www.x.org/A?b=1, it's re-done :)") == [
        "<user>",
        "see",
        "<url>",
        "it's",
        "re-done",
        ":)",
    ]
    assert split_words("naïve  café") == ["nave", "caf"]
    assert split_words("") == []


@pytest.mark.parametrize("bad", [message("ann", "d", "t", "x"), message(1, "d", "t", None), {"user": 1}])
def test_bad_messages_are_named_by_file_and_line(tmp_path: Path, bad: object) -> None:
    with pytest.raises(BadData, match=r"irc\.xz, line 2: a message needs user"):
        read_irc(write_messages(tmp_path / "irc.xz", message(1, "d", "t", "x"), bad))
