"""A parcel gives every worker the same value, and large arrays only once."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest
from builders import same
from engine.executors.harness import open_and_report

from fedbalancer.engine.executors import blocks
from fedbalancer.engine.executors.parcel import Parcel
from fedbalancer.processes import process_context

CONTENT = {
    "big": np.arange(40_000, dtype=np.float64).reshape(200, 200),
    "columns": np.asfortranarray(np.arange(20_000, dtype=np.int64).reshape(100, 200)),
    "small": np.arange(3, dtype=np.uint8),
    "name": "ann",
}


@pytest.fixture(params=["shared", "without shared memory"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "shared":
        monkeypatch.setattr(blocks, "make_block", lambda size: None)
    return str(request.param)


def test_what_comes_out_is_what_went_in(memory: str) -> None:
    parcel = Parcel((CONTENT, lambda: "a function of a script"))
    value, function = parcel.value
    assert same(value, CONTENT)
    assert function() == "a function of a script"
    value["big"][0] = -1.0  # whoever opens it may write, and nobody else sees it
    assert same(parcel.value[0], CONTENT)
    parcel.close()
    assert value["big"][0, 0] == -1.0


def test_other_processes_open_it_even_when_ours_is_closed_meanwhile(memory: str) -> None:
    parcel = Parcel(CONTENT)
    ours, theirs = multiprocessing.Pipe()
    process = process_context().Process(target=open_and_report, args=(theirs, parcel))
    process.start()
    parcel.close()
    assert ours.poll(120)
    value, mapped = ours.recv()
    process.join()
    assert same(value, CONTENT)
    assert mapped == (memory == "shared")
