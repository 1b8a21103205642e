"""Every method is evaluated at the same simulated seconds, whatever happens to its run."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from experiments import tinytask
from hypothesis import given
from hypothesis import strategies as st

import fedbalancer as fb
from fedbalancer.experiments.execute import execute, resume
from fedbalancer.experiments.rounds import ReachedValue, grid_times, is_at
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.store.rows import EvalRow

METHODS = ("fedavg+1t", "fedavg+wfa", "fedbalancer", "oort")
BUDGET_S, STEP_S = 400.0, 7.5


def on_grid(evals: pl.DataFrame) -> pl.DataFrame:
    return evals.filter(pl.col("schedule") == "seconds")


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    settings = {"eval_every_s": STEP_S, "eval_every": 3}
    return {name: fb.run(tinytask.load(), name, settings=settings, budget_s=BUDGET_S) for name in METHODS}


def test_all_methods_are_evaluated_at_the_same_times(runs: dict[str, Any]) -> None:
    expected = [number * STEP_S for number in range(int(BUDGET_S / STEP_S) + 1)]
    lengths = {name: run.rounds.height for name, run in runs.items()}
    assert len(set(lengths.values())) > 1, "rounds of the same length prove nothing"
    for name, run in runs.items():
        assert on_grid(run.evals)["clock_s"].to_list()[: len(expected)] == expected, name


def test_at_a_time_of_the_grid_the_model_of_the_last_round_that_has_ended_is_evaluated(runs: dict[str, Any]) -> None:
    for run in runs.values():
        ends, starts = [0.0, *run.rounds["end_s"]], [0.0, *run.rounds["start_s"]]
        for row in on_grid(run.evals).iter_rows(named=True):
            expected = max(number for number, end_s in enumerate(ends) if end_s <= row["clock_s"])
            assert row["round"] == expected
            assert row["start_s"] == starts[expected]


def test_evaluations_by_rounds_go_on_beside_and_are_those_of_a_run_without_grid(runs: dict[str, Any]) -> None:
    for name, run in runs.items():
        alone = fb.run(tinytask.load(), name, settings={"eval_every": 3}, budget_s=BUDGET_S)
        assert set(alone.evals["schedule"]) == {"rounds"}
        assert run.evals.filter(pl.col("schedule") == "rounds").equals(alone.evals)
        assert run.rounds.equals(alone.rounds)
        assert (run.weights == alone.weights).all()


def test_equal_models_have_equal_accuracies_and_are_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedbalancer.simulation.engine import SimulatedEngine

    seen, really = [], SimulatedEngine.evaluate

    def counted(self: SimulatedEngine, weights: Any) -> Any:
        seen.append(weights.tobytes())
        return really(self, weights)

    monkeypatch.setattr(SimulatedEngine, "evaluate", counted)
    run = fb.run(tinytask.load(), "fedavg+1t", settings={"eval_every_s": 2.0, "eval_every": 1}, rounds=6)
    assert len(seen) == len(set(seen)) <= 7
    assert run.evals.height > 3 * len(seen)
    assert all(len(set(part["accuracy"])) == 1 for part in run.evals.partition_by("round"))


def test_a_run_that_is_carried_on_stays_on_its_grid(tmp_path: Path) -> None:
    options: Any = {"settings": {"w": 2, "eval_every_s": STEP_S, "eval_every": 1}}
    fb.run(tinytask.load(), budget_s=150.0, out=tmp_path / "run", **options)
    longer = fb.resume(tmp_path / "run", task=tinytask.load(), budget_s=BUDGET_S)
    whole = fb.run(tinytask.load(), budget_s=BUDGET_S, **options)
    assert longer.evals.equals(whole.evals)


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_a_run_that_is_stopped_and_resumed_has_the_same_evaluations(rounds: int, tmp_path: Path) -> None:
    spec = RunSpec(task=tinytask.load(), settings={"w": 2, "eval_every_s": 3.0})
    asked = itertools.count()
    stopped = execute(spec, tmp_path / "stopped", stopped=lambda: next(asked) >= rounds)
    assert stopped.status == "stopped"
    resume(tmp_path / "stopped", task=tinytask.load())
    execute(spec, tmp_path / "whole")
    for name in ("evals.parquet", "rounds.parquet", "population.parquet"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_target_stops_a_run_when_it_was_touched_by_rounds_and_held_on_the_grid() -> None:
    options: Any = {"settings": {"eval_every_s": STEP_S, "eval_every": 1}, "budget_s": 900.0}
    whole = fb.run(tinytask.load(), "fedavg+1t", **options)
    held = on_grid(whole.evals).with_columns(level=pl.col("accuracy").rolling_mean(3))
    target = float(held.filter(pl.col("clock_s") <= BUDGET_S)["level"].max() or 0)
    spec = RunSpec(task=tinytask.load(), method="fedavg+1t", target=target, **options)
    run = execute(spec)
    assert run.rounds.height < whole.rounds.height
    reached_s = float(held.filter(pl.col("level") >= target)["clock_s"][0])
    assert run.rounds["start_s"][-1] < reached_s <= run.rounds["end_s"][-1]


def test_one_lucky_evaluation_does_not_hold_a_target() -> None:
    found = ReachedValue(on_grid=True)
    found.add([EvalRow(1, 0.0, 1.0, 0.9, 1.0)])
    found.add(
        [EvalRow(1, 0.0, float(at), accuracy, 1.0, "seconds") for at, accuracy in enumerate((0.1, 0.9, 0.2, 0.7))]
    )
    assert not found.is_at(0.9)
    assert found.is_at(0.6)
    by_rounds = ReachedValue(on_grid=False)
    by_rounds.add([EvalRow(0, 0.0, 0.0, 0.99, 1.0), EvalRow(1, 0.0, 1.0, 0.9, 1.0)])
    assert by_rounds.is_at(0.9)
    assert not by_rounds.is_at(0.95), "the model before training reaches nothing"


@given(st.floats(0.01, 1e4), st.lists(st.floats(0.001, 1e3), min_size=1, max_size=30))
def test_however_long_the_rounds_are_every_time_of_the_grid_comes_once(step_s: float, lengths: list[float]) -> None:
    clock_s = [0.0, *itertools.accumulate(lengths)]
    if clock_s[-1] / step_s > 1e4:
        return
    parts = [grid_times(step_s, *ends) for ends in itertools.pairwise(clock_s)]
    times = [time_s for part in parts for time_s in part]
    assert times == grid_times(step_s, 0.0, clock_s[-1])
    assert times == [number * step_s for number in range(1, len(times) + 1)]
    for part, (start_s, end_s) in zip(parts, itertools.pairwise(clock_s), strict=True):
        assert all(start_s * (1 - 1e-8) < time_s <= end_s * (1 + 1e-8) for time_s in part)
        assert all(not is_at(time_s, end_s) for time_s in part[:-1])


def test_the_end_of_the_budget_is_a_time_of_the_grid_for_the_run_that_ends_there() -> None:
    for parts in range(1, 200):
        budget_s = 1000.0 / 7 * parts
        assert len(grid_times(budget_s / 50, 0.0, budget_s)) == 50
