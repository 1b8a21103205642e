"""Equal work of several runs is done once, and gives the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plain_trainer import Plain

from fedbalancer.core.types import ClientWork, DivergedTraining, Evaluation, FloatArray, TrainResult, Weights
from fedbalancer.simulation.executors import InlineExecutor, result_cache
from fedbalancer.simulation.executors.result_cache import CachingExecutor, ResultFiles

WORK = ClientWork(
    client="a", indices=np.array([1, 4, 5]), batches=3, batch_size=2, learning_rate=0.1, mu=0.0, clip_norm=None, seed=7
)
WEIGHTS = np.array([1.0, 2.0, 3.0], dtype=np.float32)


@dataclass
class Counting:
    """A trainer that writes down what it really did."""

    trainer: Plain = field(default_factory=Plain)
    done: list[Any] = field(default_factory=list)
    layout = Plain.layout

    def initial_weights(self, seed: int) -> Weights:
        return self.trainer.initial_weights(seed)

    def train(self, weights: Weights, work: ClientWork) -> TrainResult:
        self.done.append(work.client)
        return self.trainer.train(weights, work)

    def losses(self, weights: Weights, client: str) -> FloatArray:
        self.done.append(f"losses of {client}")
        return self.trainer.losses(weights, client)

    def evaluate(self, weights: Weights) -> Evaluation:
        self.done.append("evaluation")
        return self.trainer.evaluate(weights)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., tuple[CachingExecutor, list[Any]]]:
    def new(about: str = "task", max_bytes: int = 2**20, least_s: float = 0) -> tuple[CachingExecutor, list[Any]]:
        trainer = Counting()
        return CachingExecutor(InlineExecutor(trainer), tmp_path, about, max_bytes, least_s), trainer.done

    return new


def same(one: TrainResult, other: TrainResult) -> bool:
    return (
        one.client == other.client
        and all(getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in ("update", "seen", "losses"))
        and np.array_equal(one.steps, other.steps)
    )


def test_a_second_run_gets_what_the_first_has_computed(make: Any) -> None:
    works = [WORK, replace(WORK, client="b")]
    (first, did), (second, did_again) = make(), make()
    trained, losses = first.train(WEIGHTS, works), first.losses(WEIGHTS, ["a", "bb"])
    evaluation = first.evaluate(WEIGHTS)
    assert did == ["a", "b", "losses of a", "losses of bb", "evaluation"]
    again = second.train(WEIGHTS, list(reversed(works)))
    assert [same(*pair) for pair in zip(trained, reversed(again), strict=True)] == [True, True]
    assert [x.tobytes() for x in second.losses(WEIGHTS, ["a", "bb"])] == [x.tobytes() for x in losses]
    assert second.evaluate(WEIGHTS) == evaluation
    assert did_again == []


def test_only_what_is_missing_is_done_and_the_order_is_kept(make: Any) -> None:
    first, _ = make()
    first.train(WEIGHTS, [replace(WORK, client="b")])
    second, did = make()
    found = second.train(WEIGHTS, [replace(WORK, client=name) for name in "abc"])
    assert did == ["a", "c"]
    assert [each.client for each in found] == ["a", "b", "c"]


def test_a_training_that_diverged_is_not_cached(make: Any) -> None:
    works = [WORK, replace(WORK, client="diverging")]
    for did in (["a", "diverging"], ["diverging"]):
        executor, done = make()
        trained = executor.train(WEIGHTS, works)
        assert trained[1] == DivergedTraining("diverging", "loss is not finite")
        assert same(trained[0], Plain().train(WEIGHTS, WORK))
        assert done == did


@pytest.mark.parametrize(
    "change",
    [
        {"client": "b"}, {"indices": np.array([1, 4])}, {"indices": np.array([1, 4, 6])}, {"batches": 4},
        {"batch_size": 3}, {"learning_rate": 0.1 + 1e-15}, {"mu": 1e-9}, {"clip_norm": 5.0}, {"seed": 8},
        {"epoch_batches": 1},
    ],
)  # fmt: skip
def test_work_that_differs_in_anything_is_other_work(make: Any, change: dict[str, Any]) -> None:
    executor, did = make()
    executor.train(WEIGHTS, [WORK])
    executor.train(WEIGHTS, [replace(WORK, **change)])
    assert len(did) == 2


def test_other_weights_and_other_tasks_share_nothing(make: Any) -> None:
    make()[0].train(WEIGHTS, [WORK])
    for executor, did, weights in (
        (*make(), np.nextafter(WEIGHTS, np.float32(9))),
        (*make(about="another task"), WEIGHTS),
    ):
        executor.train(weights, [WORK])
        assert did == ["a"]


@pytest.mark.parametrize("damage", [b"", b"abc", b"\x00" * 400])
def test_a_damaged_file_is_worked_out_again(make: Any, tmp_path: Path, damage: bytes) -> None:
    first, _ = make()
    (wanted,) = first.train(WEIGHTS, [WORK])
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage)
    second, did = make()
    assert same(second.train(WEIGHTS, [WORK])[0], wanted)
    assert did == ["a"]


def test_one_flipped_bit_is_seen(make: Any, tmp_path: Path) -> None:
    make()[0].train(WEIGHTS, [WORK])
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    executor, did = make()
    executor.train(WEIGHTS, [WORK])
    assert did == ["a"]


def test_without_its_folder_it_works_all_the_same(tmp_path: Path) -> None:
    trainer = Counting()
    executor = CachingExecutor(InlineExecutor(trainer), tmp_path / "gone", "task")
    assert same(executor.train(WEIGHTS, [WORK])[0], Plain().train(WEIGHTS, WORK))


def test_the_folder_stays_small_and_what_was_used_last_stays(tmp_path: Path) -> None:
    files = ResultFiles(tmp_path, max_bytes=20_000)
    block = np.zeros(250, dtype=np.float32)  # a thousand bytes, and a name
    for number in range(100):
        files.put(f"{number}", {"x": block})
        assert files.get("0") is not None
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 22_000
    assert files.get("99") is not None
    assert files.get("1") is None


def test_a_round_too_large_to_keep_is_not_kept(make: Any, tmp_path: Path) -> None:
    executor, did = make(max_bytes=100)
    for _ in range(2):
        executor.train(WEIGHTS, [WORK])
    assert did == ["a", "a"]
    assert list(tmp_path.iterdir()) == []


def test_results_that_are_cheaper_than_a_file_are_not_kept(make: Any, tmp_path: Path) -> None:
    executor, did = make(least_s=60.0)
    for _ in range(2):
        executor.train(WEIGHTS, [WORK])
    assert did == ["a", "a"]
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_has_gone_its_own_way_for_long_leaves_no_more_files(
    make: Callable[..., tuple[CachingExecutor, list[Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_cache, "MAX_MISSES", 4)
    executor, _ = make()
    for number in range(10):
        executor.train(WEIGHTS + np.float32(number), [WORK])
    assert len(list(tmp_path.iterdir())) == 4, "its first ones, which others may share"
    executor.train(WEIGHTS, [WORK])  # found: its way and another's meet
    executor.train(WEIGHTS + np.float32(50), [WORK])
    assert len(list(tmp_path.iterdir())) == 5
    executor.initial_weights(1)  # another run
    for number in range(100, 110):
        executor.train(WEIGHTS + np.float32(number), [WORK])
    assert len(list(tmp_path.iterdir())) == 9
