"""Chat messages become words, user by user, in order of time."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from fedbalancer.core.errors import BadData
from fedbalancer.data.readers.reddit import read_irc, split_words


def write(path: Path, *records: object) -> Path:
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    return path


def message(user: object, day: str, time: str, text: object) -> dict[str, object]:
    return {"user": user, "day": day, "t": time, "text": text}


def test_messages_are_in_order_of_time_and_empty_ones_are_left_out(tmp_path: Path) -> None:
    path = write(
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
        read_irc(write(tmp_path / "irc.xz", message(1, "d", "t", "x"), bad))
