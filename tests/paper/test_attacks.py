"""Figures that robust methods keep under attack: 100 clients of `synthetic`, ten of them in a round, 30 rounds.

The ratio control looks every five rounds, so that it moves within thirty. Beside `fedbalancer+robust` stand the paper's
rules, which the same attacks steer: a test that cannot fail would say nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from fedbalancer.experiments.executor_cache import ExecutorCache
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.paper.attacks import Influence, measure_influence

BASE = RunSpec(task="synthetic", users=100, rounds=30, settings={"w": 5})
ROBUST, PAPER = "fedbalancer+robust", "fedbalancer"
soak = pytest.mark.soak


@cache
def world() -> tuple[object, object]:
    task = BASE.load_task()
    return task, ExecutorCache().executor(BASE, task)


@cache
def under(attack: str, method: str = ROBUST, seed: int = 0, rounds: int = 30) -> Influence:
    task, executor = world()
    spec = replace(BASE, method=method, seed=seed, rounds=rounds)
    return measure_influence(spec, task, executor, (attack,) if attack else ())  # type: ignore[arg-type]


SEEDS = [0, pytest.param(1, marks=soak), pytest.param(2, marks=soak)]
LIES = ["metadata-liar", "metadata-liar(factor=.1)", "metadata-liar(factor=1e40,field='high')"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("count", "most"), [(1, 0.02), (10, 0.06)])
@pytest.mark.parametrize("lie", [LIES[0], *(pytest.param(lie, marks=soak) for lie in LIES[1:])])
def test_the_loss_threshold_hardly_moves(lie: str, count: int, most: float, seed: int) -> None:
    assert under(f"{lie}:{count}", seed=seed).threshold < most


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "lie",
    [
        "latency-liar(factor=.01)",
        "epochs-liar",
        "epochs-liar(factor=1,samples=.05)",
        pytest.param("epochs-liar(factor=.2,samples=.05)", marks=soak),
        pytest.param("epochs-liar(factor=5)", marks=soak),
        pytest.param("latency-liar", marks=soak),
        pytest.param("latency-liar(factor=1.5)", marks=soak),
    ],
)
@pytest.mark.parametrize("count", [pytest.param(1, marks=soak), 10])
def test_the_deadline_hardly_moves_and_honest_clients_finish(lie: str, count: int, seed: int) -> None:
    found = under(f"{lie}:{count}", seed=seed)
    assert found.deadline < 0.05
    assert found.honest >= 0.9


@soak
@pytest.mark.parametrize("method", [ROBUST, "canter+robust"])
@pytest.mark.parametrize("seed", range(3))
def test_claimed_epochs_do_not_move_the_deadline_in_the_long_run(method: str, seed: int) -> None:
    assert under("epochs-liar:10", method, seed, 100).deadline < 0.05


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", [pytest.param(1, marks=soak), 10])
def test_a_liar_about_its_utility_is_seldom_chosen(count: int, seed: int) -> None:
    assert under(f"utility-liar:{count}", seed=seed).selected < 0.25


@soak
@pytest.mark.parametrize("attack", ["quiet-flip", "step-replay", "common-direction", "inner-product"])
def test_twenty_attackers_leave_most_of_the_accuracy(attack: str) -> None:
    """Two of the seeds of the attack matrix (docs/results/robustness), which has all attacks."""
    attacked, honest = (
        sum(under(each, "canter+robust", seed, 100).accuracy for seed in range(2)) for each in (f"{attack}:20", "")
    )
    assert attacked >= 0.85 * honest


@pytest.mark.parametrize("attack", ["quiet-flip:20", pytest.param("common-direction:20", marks=soak)])
def test_attackers_that_sink_the_papers_rules_leave_the_robust_ones(attack: str) -> None:
    """After thirty rounds; measured on seed 0."""
    robust, paper = under(attack), under(attack, PAPER)
    assert robust.accuracy > paper.accuracy + 0.1
    assert robust.selected < 0.25


def test_without_attackers_nobody_is_left_out_and_the_model_is_no_worse_than_the_papers() -> None:
    robust, paper = under(""), under("", PAPER)
    assert (robust.rejected, robust.threshold, robust.deadline) == (0, 0.0, 0.0)
    assert robust.accuracy >= paper.accuracy - 0.02


def test_the_same_lies_steer_the_papers_rules() -> None:
    assert under("metadata-liar:10", PAPER).threshold > 0.5
    assert under("utility-liar:10", PAPER).selected > 0.25
    assert under("epochs-liar:10", PAPER).deadline > 0.5
