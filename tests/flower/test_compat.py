"""Differences between versions of flwr end in two files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flwr.app import ConfigRecord, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

import fedbalancer.flower
from fedbalancer.flower.compat import make_reply, node_ids, pull, push, reply_to


def message(ttl_s: float = 60.0) -> Message:
    made = Message(RecordDict({"c": ConfigRecord({"n": 1})}), dst_node_id=5, message_type="train")
    made.metadata.ttl = ttl_s
    return made


def test_only_compat_and_wire_import_flwr() -> None:
    package = Path(fedbalancer.flower.__file__).parent
    users = {path.name for path in package.glob("*.py") if re.search(r"^\s*(from|import) flwr", path.read_text(), re.M)}
    assert users == {"compat.py", "wire.py"}


class OneName:
    def pull_messages(self, message_ids: Any) -> Any:
        return iter([f"reply to {identity}" for identity in message_ids])


class AnotherName:
    def pull_messages(self, msg_ids: Any, *, since: Any = None) -> Any:
        return [f"reply to {identity}" for identity in msg_ids]


@pytest.mark.parametrize("grid", [OneName(), AnotherName()])
def test_replies_are_pulled_whatever_the_argument_is_called(grid: Any) -> None:
    assert pull(grid, iter(["a", "b"])) == ["reply to a", "reply to b"]
    assert pull(grid, []) == []


class Push:
    def __init__(self, *ids: Any) -> None:
        self.ids = ids

    def push_messages(self, messages: Any) -> Any:
        return iter(self.ids)


def test_what_could_not_be_sent_has_no_id() -> None:
    two: Any = [object(), object()]
    assert push(Push("a", "b"), two) == ["a", "b"]  # type: ignore[arg-type]
    assert push(Push("a", None), two) == ["a", None]  # type: ignore[arg-type]
    assert push(Push("", "b"), two) == [None, "b"]  # type: ignore[arg-type]
    assert push(Push(), two) == [None, None]  # type: ignore[arg-type]


def test_nodes_are_listed_in_order() -> None:
    class Grid:
        def get_node_ids(self) -> Any:
            return {9, 3, 5}

    assert node_ids(Grid()) == [3, 5, 9]  # type: ignore[arg-type]


@given(elapsed_s=st.floats(0, 59), ahead_s=st.floats(-1e5, 1e5))
def test_a_reply_is_dated_on_the_senders_clock(elapsed_s: float, ahead_s: float) -> None:
    """Wherever the clock of the client stands, what is left of the time to live is what has passed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flwr.supercore.task_identity.TaskIdentity._task_id", 1)
        asked = message()
        now = asked.metadata.created_at
        patch.setattr("time.time", lambda: now + ahead_s)
        reply = reply_to(asked, RecordDict(), elapsed_s)
    assert reply.metadata.created_at == pytest.approx(now + elapsed_s)
    assert reply.metadata.created_at + reply.metadata.ttl == pytest.approx(now + asked.metadata.ttl)


def test_a_made_reply_is_read_like_a_real_one() -> None:
    reply = make_reply(RecordDict({"c": ConfigRecord({"n": 2})}), 7)
    assert reply.metadata.src_node_id == 7
    assert reply.has_content()
    assert reply.content.config_records["c"]["n"] == 2
