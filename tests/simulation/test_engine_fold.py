"""Updates that are added one by one instead of kept: the same bytes, and few of them in memory at a time."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from builders import same
from experiments import tinytask

from fedbalancer.core.types import FOLDED
from fedbalancer.experiments.simulation import build
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.methods.table import Method, method
from fedbalancer.server.clients import Uniform
from fedbalancer.server.loop import rounds
from fedbalancer.simulation.executors import InlineExecutor, PoolExecutor
from fedbalancer.training.trainer import TorchTrainer

FOLDS = ("fedavg+1t", "fedbalancer", "canter", "prox+1t+batches+fedadam", "fedavg+1t+fedexp", "fedavg+1t+signsgd",
         "oort+momentum+graddrop", "fedavg+wfa+averaged")  # fmt: skip
KEEPS = ("fedavg+1t+median", "fedbalancer+robust", "fedbuff", "refl", "fedavg+1t+fednova", "fedavg+1t+qffl")


def play(name: str | Method, keep_bytes: int, executor: Any = None, **settings: Any) -> tuple[list[Any], list[Any]]:
    """The states and results of four rounds that keep updates of at most `keep_bytes`."""
    spec = RunSpec(task=tinytask.load(), method=name, seed=1, settings={"clients_per_round": 5, **settings})
    world = build(spec, tinytask.load(), executor)
    world.engine.keep_bytes = keep_bytes
    start = world.server.init(world.executor.initial_weights(1))
    played = list(rounds(world.server, world.engine, start, lambda state: state.round >= 4))
    return [state for state, _ in played], [result for _, result in played]


def folded(results: list[Any]) -> list[bool]:
    return [report.update is FOLDED for result in results for report in result.reports]


@pytest.mark.parametrize("name", FOLDS)
def test_a_sum_of_updates_gives_the_bytes_of_all_at_once(name: str) -> None:
    kept, results = play(name, 10**9)
    streamed, few = play(name, 0)
    assert not any(folded(results))
    assert all(folded(few))
    assert len(folded(few)) > 3
    for one, other in zip(kept, streamed, strict=True):
        assert same(one, other)
    for one, other in zip(results, few, strict=True):
        assert same(replace(one, reports=()), replace(other, reports=()))
        for report, thin in zip(one.reports, other.reports, strict=True):
            assert same(replace(report, update=FOLDED), thin)


@pytest.mark.parametrize("name", KEEPS)
def test_methods_that_need_all_updates_keep_them(name: str) -> None:
    assert not any(folded(play(name, 0)[1]))


def test_workers_give_the_same_bytes() -> None:
    pool = PoolExecutor(lambda: TorchTrainer(tinytask.load()), 2)
    try:
        streamed, results = play("fedbalancer", 0, pool)
    finally:
        pool.close()
    assert all(folded(results))
    assert same(streamed, play("fedbalancer", 10**9)[0])


def test_attackers_and_policies_that_may_read_updates_keep_them() -> None:
    assert not any(folded(play("fedavg+1t", 0, attacks=("update-flip:2",))[1]))

    @dataclass(frozen=True)
    class Curious(Uniform):
        """Does not say what it reacts to."""

    assert not any(folded(play(method("fedavg+1t", clients=Curious()), 0)[1]))


class Exaggerates(InlineExecutor):
    """One client has losses that the server does not accept, which shows only after its update was added."""

    def train_each(self, weights: Any, works: Any) -> Iterator[Any]:
        yield from self.train(weights, works)

    def train(self, weights: Any, works: Any) -> Any:
        return [
            replace(each, losses=each.losses + 1e9 * (each.client == "c3")) for each in super().train(weights, works)
        ]


def test_a_report_that_is_rejected_after_its_update_was_added_does_not_count() -> None:
    states, results = play("fedavg+wfa", 0, Exaggerates(TorchTrainer(tinytask.load())))
    assert any(missing.why == "invalid" for result in results for missing in result.missing)
    kept, _ = play("fedavg+wfa", 10**9, Exaggerates(TorchTrainer(tinytask.load())))
    assert same(states, kept)


class Counts(InlineExecutor):
    """Counts the updates that are alive."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self.alive: set[int] = set()
        self.most = 0

    def train_each(self, weights: Any, works: Any) -> Iterator[Any]:
        for each in super().train_each(weights, works):
            self._note(each.update)
            yield each

    def train(self, weights: Any, works: Any) -> Any:
        trained = super().train(weights, works)
        for each in trained:
            self._note(each.update)
        return trained

    def _note(self, update: np.ndarray[Any, Any]) -> None:
        self.alive.add(id(update))
        weakref.finalize(update, self.alive.discard, id(update))
        self.most = max(self.most, len(self.alive))


@pytest.mark.parametrize("clients", [3, 8])
def test_few_updates_are_in_memory_however_many_clients_there_are(clients: int) -> None:
    few, all_at_once = (Counts(TorchTrainer(tinytask.load())) for _ in range(2))
    play("fedavg+wfa", 0, few, clients_per_round=clients)
    play("fedavg+wfa", 10**9, all_at_once, clients_per_round=clients)
    assert few.most <= 2
    assert all_at_once.most >= clients
