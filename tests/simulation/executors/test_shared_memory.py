"""Shared memory is there for whoever holds it; a shared value is the same for every worker, and there only once."""

from __future__ import annotations

import multiprocessing
import os
import threading

import numpy as np
import pytest
from builders import same
from simulation.executors.harness import open_and_report

from fedbalancer.core.processes import process_context
from fedbalancer.simulation.executors import shared_memory
from fedbalancer.simulation.executors.shared_memory import SharedValue

CONTENT = {
    "big": np.arange(40_000, dtype=np.float64).reshape(200, 200),
    "columns": np.asfortranarray(np.arange(20_000, dtype=np.int64).reshape(100, 200)),
    "small": np.arange(3, dtype=np.uint8),
    "name": "ann",
}


@pytest.fixture(params=["shared", "without shared memory"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "shared":
        monkeypatch.setattr(shared_memory, "make_block", lambda size: None)
    return str(request.param)


def test_what_comes_out_is_what_went_in(memory: str) -> None:
    shared = SharedValue((CONTENT, lambda: "a function of a script"))
    value, function = shared.value
    assert same(value, CONTENT)
    assert function() == "a function of a script"
    value["big"][0] = -1.0  # a process that opens it may write, and no other process sees it
    assert same(shared.value[0], CONTENT)
    shared.close()
    assert value["big"][0, 0] == -1.0


def test_other_processes_open_it_even_when_ours_is_closed_meanwhile(memory: str) -> None:
    shared = SharedValue(CONTENT)
    ours, theirs = multiprocessing.Pipe()
    process = process_context(__name__).Process(target=open_and_report, args=(theirs, shared))
    process.start()
    shared.close()
    assert ours.poll(120)
    value, mapped = ours.recv()
    process.join()
    assert same(value, CONTENT)
    assert mapped == (memory == "shared")


def test_what_is_sent_through_a_pipe_arrives_and_may_be_written_to(memory: str) -> None:
    ours, theirs = multiprocessing.Pipe()
    sent = SharedValue(CONTENT)
    for _ in range(2):  # the same value may go to many
        sender = threading.Thread(target=sent.send, args=(ours, os.getpid()))  # a pipe may hold less than a message
        sender.start()
        value = SharedValue.receive(theirs)
        sender.join()
        assert same(value, CONTENT)
        value["big"][0] = -1.0
    sent.close()
    assert value["big"][0, 0] == -1.0
    ours.close()
    with pytest.raises(EOFError):
        SharedValue.receive(theirs)


def test_where_there_are_none_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> int:
        raise OSError(38, "not implemented")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert shared_memory.make_block(10) is None
