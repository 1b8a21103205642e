"""A run in which nobody sends a usable report ends with an error, and deadlines grow only where time was the cause."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower.phones import FEATURES, Phone, World
from flower.test_grid_engine import altered, arrays, metrics, raised
from flwr.app import Message

from fedbalancer.core.errors import BadSetting, FedBalancerError, NoUsableReports, TrainingDiverged
from fedbalancer.flower import Strategy

METHODS = ("fedbalancer", "canter", "fedavg+2t", "fedbalancer+late", "fedbalancer+robust")


def world_of(change: Callable[[Message], Any], clients: int = 3) -> World:
    return World(*(Phone(number, change=change) for number in range(clients)))


def deadlines(world: World) -> list[float]:
    return [fields["deadline_s"] for fields in world.of("round")]


@pytest.mark.parametrize("name", METHODS)
def test_a_run_whose_clients_all_raise_ends_with_their_reason(tmp_path: Path, name: str) -> None:
    world = world_of(raised)
    with pytest.raises(NoUsableReports, match=r"rounds 1 to 5.*client 'c0': error 2: it raised") as error:
        world.start(30, name, checkpoint_dir=tmp_path, run_key="mine")
    manifest = json.loads((tmp_path / "mine" / "manifest.json").read_text())
    assert (manifest["status"], manifest["why"]) == ("failed", str(error.value))
    assert len(set(deadlines(world))) == 1, "more time would not have helped"


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    "change",
    [
        lambda reply: altered(reply, arrays=arrays(w=[np.nan] * FEATURES)),
        lambda reply: altered(reply, arrays=arrays(w=[np.inf] * FEATURES)),
        lambda reply: altered(reply, metrics=metrics(loss_sum=float("nan"))),
    ],
    ids=["NaN", "infinite", "loss"],
)
def test_a_training_that_has_diverged_is_told_after_three_rounds(name: str, change: Callable[[Message], Any]) -> None:
    world = world_of(change)
    with pytest.raises(TrainingDiverged, match="in 3 rounds; round 3, client"):
        world.start(30, name)
    assert len(set(deadlines(world))) == 1


def test_what_is_malformed_has_not_diverged() -> None:
    world = world_of(lambda reply: altered(reply, metrics=metrics(num_examples=-1)))
    with pytest.raises(NoUsableReports, match="weight -1, which must be a whole number"):
        world.start(30)


@pytest.mark.parametrize("name", ["fedbalancer", "canter", "fedavg+1t"])
def test_deadlines_grow_where_time_was_the_cause(name: str) -> None:
    world = world_of(lambda reply: None)
    with pytest.raises(NoUsableReports, match="client 'c0': silent"):
        world.start(30, name)
    found = deadlines(world)
    assert len(found) == 5
    assert found == sorted(found)
    assert found[-1] >= found[0] + 40


def test_a_usable_report_starts_the_count_again() -> None:
    phone = Phone(0, change=lambda reply: reply if len(phone.orders) % 3 == 0 else raised(reply))
    World(phone).start(9, max_failed_rounds=3)
    phone.orders.clear()
    with pytest.raises(NoUsableReports, match="rounds 1 to 2"):
        World(phone).start(9, max_failed_rounds=2)


def test_there_need_not_be_a_limit() -> None:
    world = world_of(raised, clients=1)
    world.start(12, max_failed_rounds=None)
    assert len(deadlines(world)) == 12


@pytest.mark.parametrize("most", [0, -1, 2.5, True])
def test_a_limit_that_is_none_is_refused(most: Any) -> None:
    with pytest.raises(BadSetting, match="max_failed_rounds must be a whole number"):
        Strategy(max_failed_rounds=most)


def test_the_run_continues_once_the_clients_are_mended(tmp_path: Path) -> None:
    places = {"checkpoint_dir": tmp_path, "run_key": "mine"}
    phones = [Phone(0), Phone(1)]
    for phone in phones:
        phone.change = raised
    with pytest.raises(FedBalancerError):
        World(*phones).start(8, **places)
    for phone in phones:
        phone.change = None
    result = World(*phones).start(8, **places)
    assert [result.train_metrics_clientapp[n]["completed"] for n in range(1, 9)] == [0] * 5 + [2] * 3
