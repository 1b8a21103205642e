"""The paper's scoring rule, on cases that can be computed by hand."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.reporting import Estimate, RunCurve
from fedbalancer.reporting import score as score_by

ROUND_S = 10.0
LOGS = Path(os.environ.get("FEDBALANCER_REFERENCE", Path(__file__).parents[3] / "shared" / "reference"))


score = partial(score_by, rule="paper")


def curve(method: str, points: list[tuple[float, float]], seed: int = 0, status: str = "done") -> RunCurve:
    """A run from (clock, accuracy) points whose rounds took ten seconds."""
    return RunCurve(
        method,
        seed,
        pl.DataFrame(
            [(number + 1, clock - ROUND_S, clock, accuracy, 0.0) for number, (clock, accuracy) in enumerate(points)],
            schema={
                "round": pl.Int64,
                "start_s": pl.Float64,
                "clock_s": pl.Float64,
                "accuracy": pl.Float64,
                "loss": float,
            },
            orient="row",
        ),
        status,
    )


def test_the_target_is_the_final_accuracy_of_the_best_fedavg_variant_and_the_speedup_relative_to_its_time() -> None:
    result = score(
        [
            curve("fedavg+1t", [(50, 0.5), (80, 0.7), (100, 0.6)]),
            curve("fedavg+2t", [(40, 0.3), (90, 0.65)]),
            curve("fedbalancer", [(30, 0.66), (95, 0.9)]),
        ],
        {0: 100.0},
    )
    assert result.target == 0.65
    assert result.seeds[0].reference == "fedavg+2t"
    assert result["fedbalancer"].speedup.mean == pytest.approx(90 / 30)
    assert result["fedavg+1t"].speedup.mean == pytest.approx(90 / 80)  # touched the target, though it ended below
    assert result["fedavg+1t"].accuracy.mean == 0.6
    assert result["fedbalancer"].accuracy.mean == 0.9


def test_a_target_that_is_never_reached_counts_as_zero_and_not_as_reached() -> None:
    runs = [curve("fedavg+1t", [(100, 0.8)], seed) for seed in (0, 1)]
    runs += [curve("oort", [(50, 0.8)], 0), curve("oort", [(50, 0.7)], 1)]
    oort = score(runs, {0: 100.0, 1: 100.0})["oort"]
    assert oort.reached == 1
    assert [s.speedup for s in oort.scores] == [2.0, 0.0]
    assert oort.speedup.mean == 1.0
    assert oort.scores[1].time_s is None


def test_evaluations_beyond_the_budget_count_for_the_time_but_not_for_the_final_accuracy() -> None:
    late = curve("prox+1t", [(100, 0.7), (200, 0.85)])
    result = score([curve("fedavg+1t", [(100, 0.8), (150, 0.95)]), late], {0: 100.0})
    assert result.target == 0.8
    assert result["prox+1t"].accuracy.mean == 0.7
    assert result["prox+1t"].speedup.mean == 0.5


def test_an_evaluation_that_ends_exactly_on_the_budget_is_within_it() -> None:
    budget_s = sum([0.1] * 10)  # 0.9999999999999999: the same rounds, summed in another order
    assert score([curve("fedavg+1t", [(0.5, 0.5), (1.0, 0.9)])], {0: budget_s}).target == 0.9


def test_of_variants_that_end_equal_the_one_that_was_there_first_is_the_reference() -> None:
    tied = [curve("fedavg+1t", [(90, 0.8)]), curve("fedavg+2t", [(60, 0.8)]), curve("fedbalancer", [(30, 0.8)])]
    result = score(tied, {0: 100.0})
    assert result.seeds[0].reference == "fedavg+2t"
    assert result["fedbalancer"].speedup.mean == 2.0


def test_without_a_fedavg_variant_the_first_method_listed_is_the_reference() -> None:
    runs = [curve("fedavg+1t+qffl", [(20, 0.9)]), curve("prox+1t", [(60, 0.8)])]
    result = score(runs, {0: 100.0}, methods=["prox+1t", "fedavg+1t+qffl"])
    assert not result.fedavg_reference
    assert result.seeds[0].reference == "prox+1t"
    assert result["fedavg+1t+qffl"].speedup.mean == 3.0


def test_the_legacy_stamp_is_the_start_of_the_round_and_never_zero() -> None:
    runs = [curve("fedavg+1t", [(10, 0.1), (60, 0.8)]), curve("fedbalancer", [(30, 0.8)]), curve("oort", [(10, 0.8)])]
    legacy = score(runs, {0: 100.0}, stamp="start")
    assert legacy["fedbalancer"].speedup.mean == pytest.approx(50 / 20)
    assert legacy["oort"].speedup.mean == pytest.approx(50 / 10)  # its round starts at 0 s
    with pytest.raises(BadSetting, match="stamp"):
        score(runs, {0: 100.0}, stamp="middle")  # type: ignore[arg-type]


def test_the_legacy_stamp_decides_which_evaluation_is_the_last_one_and_with_it_final_accuracies_and_target() -> None:
    """FedAvg+1T's last round takes from 90 to 100 s: theirs is a budget of 90 s."""
    runs = [
        curve("fedavg+1t", [(50, 0.5), (100, 0.7), (110, 0.9)]),  # starts at 40, 90 and 100 s
        curve("fedavg+wfa", [(60, 0.6), (99, 0.65), (105, 0.8)]),  # starts at 50, 89 and 95 s
        curve("oort", [(45, 0.75), (98, 0.6), (103, 0.4)]),
    ]
    runs[2] = replace(runs[2], evals=runs[2].evals.with_columns(start_s=pl.Series([35.0, 88.0, 89.5])))
    end, start = score(runs, {0: 100.0}), score(runs, {0: 100.0}, stamp="start")
    assert (end.target, end.budget_s) == (0.7, 100.0)
    assert (start.target, start.budget_s) == (0.7, 90.0)
    assert [m.accuracy.mean for m in end.methods] == [0.7, 0.65, 0.6]
    assert [m.accuracy.mean for m in start.methods] == [0.7, 0.65, 0.4]  # begun at 89.5 s, though it ended at 103 s
    assert start["oort"].speedup.mean == pytest.approx(90 / 35)


def test_the_legacy_budget_stays_where_fedavg_1t_took_no_part() -> None:
    runs = [curve("fedavg+wfa", [(60, 0.6), (105, 0.8)]), curve("oort", [(50, 0.7), (120, 0.9)])]
    start = score(runs, {0: 100.0}, stamp="start")
    assert (start.target, start.budget_s) == (0.8, 100.0)  # begun at 95 s
    assert start["oort"].accuracy.mean == 0.7
    assert score(runs, {0: 100.0}).target == 0.6


def test_bytes_follow_the_stamp_as_well() -> None:
    starts = {"start_s": [1.0, 90.0, 100.0], "end_s": [50.0, 100.0, 110.0]}
    traffic = pl.DataFrame({**starts, "down_bytes": [10, 20, 999], "up_bytes": [1, 2, 999]})
    run = replace(curve("fedavg+1t", [(50, 0.5), (100, 0.7)]), traffic=traffic)
    for stamp in ("end", "start"):
        assert score([run], {0: 100.0}, stamp=stamp)["fedavg+1t"].down_bytes.mean == 30  # type: ignore[arg-type]


def test_the_authors_logs_give_their_budget_and_their_final_accuracies() -> None:
    """UCI-HAR, seed 0: FedAvg+1T's start times; 50 rounds count, of which it evaluates every fifth."""
    logs = LOGS / "har_golden_seed0.json"
    if not logs.is_file():
        pytest.skip(f"golden file absent: {logs} (FEDBALANCER_REFERENCE names its folder)")
    runs, golden = [], json.loads(logs.read_text())
    for name, method in (("fedavg_1T", "fedavg+1t"), ("fedavg_WFA", "fedavg+wfa"), ("fedbalancer", "fedbalancer")):
        logged = golden["seeds"]["0"]["runs"][name]
        starts = logged["log_start_times"][4::5]
        count = min(len(starts), len(logged["log_acc_every5"]))
        frame = {"start_s": starts[:count], "clock_s": [s + 1 for s in starts[:count]]}
        runs.append(RunCurve(method, 0, pl.DataFrame({**frame, "accuracy": logged["log_acc_every5"][:count]})))
    budget_s = runs[0].evals["clock_s"][9]  # the end of round 50
    result = score(runs, {0: budget_s}, stamp="start")
    assert math.ceil(result.budget_s or 0) == golden["budget_s"][0] == 10187
    assert [round(m.accuracy.mean or 0, 3) for m in result.methods] == [0.843, 0.820, 0.882]
    assert result.seeds[0].reference == "fedavg+1t"
    assert [round(m.speedup.mean or 0, 2) for m in result.methods] == [1.0, 0.66, 1.89]


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_what_never_arrived_has_a_mean_of_zero_and_neither_interval_nor_deviation(seeds: int) -> None:
    runs = [curve("fedavg+1t", [(100, 0.8)], seed) for seed in range(seeds)]
    runs += [curve("oort", [(50, 0.7)], seed) for seed in range(seeds)]
    content = score(runs, dict.fromkeys(range(seeds), 100.0)).to_json()["methods"]["oort"]
    assert content["speedup"] == {"mean": 0.0, "std": None, "low": None, "high": None, "reached": 0}


def test_a_seed_that_never_arrived_leaves_the_papers_mean_and_no_interval() -> None:
    runs = [curve("fedavg+1t", [(100, 0.8)], seed) for seed in range(3)]
    runs += [curve("oort", [(50, 0.8 if seed else 0.7)], seed) for seed in range(3)]
    speedup = score(runs, dict.fromkeys(range(3), 100.0))["oort"].speedup
    assert (speedup.mean, speedup.low, speedup.high) == (pytest.approx(4 / 3), None, None)
    assert speedup.std == pytest.approx(1.1547, abs=1e-4)


def test_the_model_before_training_reaches_no_target() -> None:
    runs = [curve("fedavg+1t", [(0, 0.9), (50, 0.4)]), curve("oort", [(0, 0.9), (25, 0.5)])]
    assert score(runs, {0: 100.0})["oort"].speedup.mean == 2.0


def test_one_seed_has_a_mean_and_no_interval() -> None:
    assert Estimate.of([1.5]) == Estimate(1.5, None, None, None)
    assert Estimate.of([]) == Estimate(None, None, None, None)


def test_the_interval_is_students_with_the_sample_deviation() -> None:
    spread = Estimate.of([1.0, 2.0, 3.0])
    assert (spread.mean, spread.std) == (2.0, 1.0)
    assert spread.low == pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-6)
    assert spread.high == pytest.approx(2 + 4.302653 / math.sqrt(3), abs=1e-6)
    assert Estimate.of([2.0, 2.0]) == Estimate(2.0, 0.0, 2.0, 2.0)


def test_a_run_that_stopped_before_the_budget_is_left_out_and_named() -> None:
    runs = [curve("fedavg+1t", [(100, 0.8)]), curve("oort", [(50, 0.9)], status="failed")]
    result = score(runs, {0: 100.0})
    assert result["oort"].scores == ()
    assert result["oort"].speedup.mean is None
    assert any("oort, seed 0 is not scored" in note and "failed" in note for note in result.notes)


def test_a_run_that_stopped_beyond_the_budget_is_scored_and_named() -> None:
    runs = [curve("fedavg+1t", [(100, 0.8)]), curve("oort", [(50, 0.9), (110, 0.9)], status="stopped")]
    result = score(runs, {0: 100.0})
    assert result["oort"].speedup.mean == 2.0
    assert any("oort, seed 0 is stopped" in note for note in result.notes)


def test_a_seed_without_budget_or_reference_is_left_out_and_named() -> None:
    runs = [
        curve("fedavg+1t", [(100, 0.8)], 0),
        curve("fedavg+1t", [(9, 0.8)], 1, "failed"),
        curve("oort", [(50, 0.8)], 1),
    ]
    result = score([*runs, curve("oort", [(50, 0.8)], 2)], {0: 100.0, 1: 100.0})
    assert [seed.seed for seed in result.seeds] == [0]
    assert any("seed 1 is not scored: no reference" in note for note in result.notes)
    assert any("seed 2 is not scored: its time budget" in note for note in result.notes)


def test_nothing_to_score_is_not_an_error() -> None:
    result = score([], {}, methods=["oort"])
    assert result.to_json()["target"] is None
    assert result.to_json()["methods"]["oort"]["speedup"]["mean"] is None


def test_accuracies_that_are_no_numbers_are_ignored() -> None:
    result = score([curve("fedavg+1t", [(90, 0.8), (100, math.nan)])], {0: 100.0})
    assert result.target == 0.8


def test_the_json_shape_is_the_promised_one() -> None:
    runs = [curve("fedavg+1t", [(100, 0.8)], seed) for seed in (0, 1)]
    runs += [curve("fedbalancer", [(50, 0.8)], seed) for seed in (0, 1)]
    content: Any = score(runs, {0: 100.0, 1: 120.0}).to_json()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    promised = {
        "target": 0.8,
        "budget_s": 110.0,
        "methods": {
            name: {
                "speedup": {"mean": mean, "std": 0.0, "low": mean, "high": mean, "reached": 2},
                "accuracy": {"mean": 0.8, "std": 0.0},
                "down_bytes": {"mean": None, "std": None},
                "up_bytes": {"mean": None, "std": None},
            }
            for name, mean in (("fedavg+1t", 1.0), ("fedbalancer", 2.0))
        },
        "seeds": 2,
    }
    assert within(promised, content) == promised
    second = {
        "seed": 1,
        "target": 0.8,
        "budget_s": 120.0,
        "reference": "fedavg+1t",
        "methods": {
            "fedavg+1t": {"time_s": 100.0, "speedup": 1.0, "accuracy": 0.8},
            "fedbalancer": {"time_s": 50.0, "speedup": 2.0, "accuracy": 0.8},
        },
    }
    assert within(second, content["per_seed"][1]) == second


def within(promised: Any, content: Any) -> Any:
    """Return the promised part of the content, which may have more keys."""
    if not isinstance(promised, dict):
        return content
    return {key: within(value, content[key]) for key, value in promised.items()}


def test_bytes_are_summed_within_the_budget_and_averaged_over_seeds() -> None:
    traffic = pl.DataFrame({"end_s": [50.0, 100.0, 101.0], "down_bytes": [10, 20, 999], "up_bytes": [1, 2, 999]})
    runs = [replace(curve("fedavg+1t", [(100, 0.8)]), traffic=traffic)]
    runs += [replace(curve("fedavg+1t", [(100, 0.8)], seed=1), traffic=traffic.with_columns(pl.col("up_bytes") * 3))]
    content = score(runs, {0: 100.0, 1: 100.0}).to_json()["methods"]["fedavg+1t"]
    assert content["down_bytes"]["mean"] == 30
    assert content["up_bytes"]["mean"] == 6


def test_an_unknown_method_is_named() -> None:
    with pytest.raises(UnknownName, match="fedbalancer"):
        score([curve("fedbalancer", [(1, 0.5)])], {0: 1.0})["fedbalancr"]


HAR = {  # seconds to the target and accuracy within the budget, seeds 0, 1 and 2, as the authors' logs have them
    "fedavg+1t": ((9131, 57937, 38478), (0.8429, 0.773, 0.825)),
    "fedavg+2t": ((13696, 12828, 19229), (0.821, 0.835, 0.801)),
    "fedavg+spc": ((12523, 9989, 11544), (0.818, 0.8453, 0.8561)),
    "prox+1t": ((8486, 10402, 13461), (0.844, 0.860, 0.842)),
    "fedbalancer": ((4829, 8345, 7300), (0.882, 0.876, 0.807)),
}
HAR_BUDGETS_S = {0: 10187.0, 1: 12398.0, 2: 11859.0}
HAR_TARGETS = {0: 0.8429, 1: 0.8453, 2: 0.8561}


def test_the_published_har_runs_give_the_published_row() -> None:
    runs = []
    for method, (times_s, finals) in HAR.items():
        for seed, budget_s in HAR_BUDGETS_S.items():
            points = {float(times_s[seed]): HAR_TARGETS[seed], budget_s: finals[seed]}
            runs.append(curve(method, sorted(points.items()), seed))
    result = score(runs, HAR_BUDGETS_S)
    assert [seed.reference for seed in result.seeds] == ["fedavg+1t", "fedavg+spc", "fedavg+spc"]
    assert [round(s.speedup, 2) for s in result["fedbalancer"].scores] == [1.89, 1.20, 1.58]
    assert round(result["fedbalancer"].speedup.mean or 0, 2) == 1.56
    assert round(result["fedavg+1t"].speedup.mean or 0, 2) == 0.49
    assert round(result["fedbalancer"].accuracy.mean or 0, 3) == 0.855


points = st.lists(
    st.tuples(st.integers(1, 200), st.integers(0, 100)), min_size=1, max_size=12, unique_by=lambda p: p[0]
)


@given(st.lists(points, min_size=1, max_size=3), points, st.sampled_from(["end", "start"]))
def test_the_reference_of_a_seed_has_a_speedup_of_exactly_one(
    variants: list[list[tuple[int, int]]], other: list[tuple[int, int]], stamp: str
) -> None:
    runs = [
        curve(f"fedavg+{number}t", [(10.0 * t, a / 100) for t, a in sorted(run)]) for number, run in enumerate(variants)
    ]
    runs.append(curve("fedbalancer", [(10.0 * t, a / 100) for t, a in sorted(other)]))
    result = score(runs, {0: 2000.0}, stamp=stamp)  # type: ignore[arg-type]
    seed = result.seeds[0]
    assert result[seed.reference].speedup.mean == 1.0
    assert seed.target == max(result[f"fedavg+{number}t"].accuracy.mean or 0 for number in range(len(variants)))
    for method in result.methods:
        assert method.reached == sum(s.speedup > 0 for s in method.scores)
