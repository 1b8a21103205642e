"""A block is memory that is there for whoever holds it."""

from __future__ import annotations

import os

import numpy as np
import pytest

from fedbalancer.engine.executors import blocks


def test_what_one_writes_another_reads_and_own_changes_stay_here() -> None:
    block = blocks.make_block(400)
    assert block is not None
    blocks.write(block, np.arange(50, dtype=np.float32), start=200)
    shared = blocks.mapped(block, 100)
    assert shared.tolist() == [0.0] * 50 + list(range(50))
    own = blocks.mapped(block, 100, own=True)
    own[:] = 7.0
    assert shared[99] == 49.0
    shared[0] = 3.0
    assert blocks.mapped(block, 1).tolist() == [3.0]
    os.close(block)
    assert shared[99] == 49.0


def test_where_there_are_none_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> int:
        raise OSError(38, "not implemented")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert blocks.make_block(10) is None
