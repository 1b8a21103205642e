"""Nothing that comes over the network is unpickled."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower.phones import Phone, World
from trap import caught  # noqa: F401 - a fixture


def test_rounds_on_flower_unpickle_nothing(caught: list[str]) -> None:  # noqa: F811
    world = World(Phone(0), Phone(1))
    caught.clear()
    world.start(2, "fedavg+wfa")
    assert world.of("round closed")
    assert caught == []
