"""One reply that hangs holds up nothing else."""

from __future__ import annotations

import signal
import threading
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from fedbalancer.flower.mailbox import LANES, ReplyPuller
from fedbalancer.flower.wire import ReplyLimit

LIMIT = ReplyLimit(1, 10**6)


class Reply(str):
    """As much of a message as is read: what it answers."""

    @property
    def metadata(self) -> Any:
        return SimpleNamespace(reply_to_message_id=str(self))


class Stuck:
    """A grid on which the reply to "a" hangs until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.asked: list[list[str]] = []

    def pull_messages(self, ids: Any) -> list[Reply]:
        self.asked.append(list(ids))
        if "a" in ids:
            self.let_go.wait(60)
        return [Reply(identity) for identity in ids]


def test_a_reply_that_hangs_holds_up_nobody() -> None:
    grid = Stuck()
    puller = ReplyPuller(grid, LIMIT)  # type: ignore[arg-type]
    ids, got = ["a", "b", "c"], []
    try:
        while len(ids) > 1:
            for reply in puller.pull(ids, 0.2):
                ids.remove(reply.answers)
                got.append(reply.answers)
        assert sorted(got) == ["b", "c"]
    finally:
        grid.let_go.set()
    assert [reply.answers for reply in puller.pull(ids, 60.0)] == ["a"]
    assert sum("a" in asked for asked in grid.asked) == 1


def test_later_messages_keep_out_of_a_lane_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedbalancer.flower.mailbox.HANGS_S", 0.1)
    grid = Stuck()
    puller = ReplyPuller(grid, LIMIT)  # type: ignore[arg-type]
    try:
        assert not puller.pull(["a"], 0.3)
        ids = ["a", *(f"b{number}" for number in range(3 * LANES))]
        for _ in range(100):
            for reply in puller.pull(ids, 0.2):
                ids.remove(reply.answers)
                puller.forget(reply.answers)
            if ids == ["a"]:
                break
        assert ids == ["a"]
    finally:
        grid.let_go.set()
    assert sum("a" in asked for asked in grid.asked) == 1, "a message must not be in two pulls at once"


def test_an_error_of_the_grid_is_not_swallowed() -> None:
    class Broken:
        def pull_messages(self, ids: Any) -> list[str]:
            raise ConnectionError("the SuperLink is gone")

    with pytest.raises(ConnectionError):
        ReplyPuller(Broken(), LIMIT).pull(["a"], 60.0)  # type: ignore[arg-type]


def test_a_signal_is_seen_while_a_call_hangs() -> None:
    """A ServerApp whose SuperLink is gone gets its signal from a thread, which interrupts no wait."""

    class Ended(Exception):
        pass

    def end(number: int, frame: FrameType | None) -> None:
        raise Ended

    let_go, puller = threading.Event(), ReplyPuller(Stuck(), LIMIT)  # type: ignore[arg-type]
    before = signal.signal(signal.SIGUSR1, end)
    threading.Timer(0.2, signal.raise_signal, [signal.SIGUSR1]).start()
    try:
        with pytest.raises(Ended):
            puller.call_in_background(let_go.wait, 60)
    finally:
        let_go.set()
        signal.signal(signal.SIGUSR1, before)
    assert puller.call_in_background(sorted, [2, 1], reverse=True) == [2, 1]
