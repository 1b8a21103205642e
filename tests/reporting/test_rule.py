"""The fair rule: one grid of seconds for all, held targets, and runs that never reach the target."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.reporting import Comparison, RunCurve, score
from fedbalancer.reporting.summary import write_headline
from fedbalancer.reporting.tables import markdown_table
from fedbalancer.reporting.time_curve import time_curve

BUDGET_S = 100.0


def run(method: str, accuracies: list[float], seed: int = 0, step_s: float = 10.0, **more: Any) -> RunCurve:
    """A run that was evaluated on the grid only, up to the end of its accuracies."""
    times = [step_s * place for place in range(len(accuracies))]
    grid = pl.DataFrame({"start_s": times, "clock_s": times, "accuracy": accuracies})
    return RunCurve(method, seed, grid.clear(), end_s=times[-1], grid=grid, **more)


def rising(at: int, length: int = 11, low: float = 0.1, high: float = 0.8) -> list[float]:
    """Low until the grid time number `at`, and high from then on."""
    return [low] * at + [high] * (length - at)


def test_a_target_is_reached_when_it_is_held_and_the_first_touch_stands_beside() -> None:
    lucky = [0.1, 0.1, 0.9, 0.1, 0.1, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8]
    result = score([run("fedavg+1t", rising(6)), run("oort", lucky)], {0: BUDGET_S})
    reach = result["oort"].scores[0].reaches[1.0]
    assert (reach.arrival.seconds, reach.touch.seconds) == (70.0, 20.0)
    assert (reach.reference.seconds, reach.reference_touch.seconds) == (80.0, 60.0)
    assert result["oort"].speedup.mean == pytest.approx(80 / 70)
    assert result["oort"].at(1.0).touch.mean == pytest.approx(60 / 20)


def test_the_final_accuracy_is_the_mean_of_the_last_three_within_the_budget() -> None:
    result = score([run("fedavg+1t", [0.0] * 8 + [0.6, 0.7, 0.8] + [0.99] * 9)], {0: BUDGET_S})
    assert result["fedavg+1t"].accuracy.mean == pytest.approx(0.7)
    assert result.target == pytest.approx(0.7)


def test_more_evaluations_by_rounds_give_no_more_chances() -> None:
    """A run with ten times as many evaluations by rounds, lucky ones among them, scores as without them."""
    plain = run("oort", rising(5))
    many = pl.DataFrame({"start_s": [0.0] * 50, "clock_s": [float(t) for t in range(1, 51)], "accuracy": [0.95] * 50})
    rich = RunCurve("oort", 0, many, end_s=plain.end_s, grid=plain.grid)
    reference = run("fedavg+1t", rising(7))
    assert score([reference, plain], {0: BUDGET_S}).to_json() == score([reference, rich], {0: BUDGET_S}).to_json()


def test_a_run_that_never_arrives_is_censored_where_it_ended_never_zero_and_never_dropped() -> None:
    runs = [run("fedavg+1t", rising(4), seed) for seed in range(5)]
    runs += [run("oort", rising(2) if seed else [0.1] * 21, seed) for seed in range(5)]
    result = score(runs, dict.fromkeys(range(5), BUDGET_S))
    oort = result["oort"]
    assert [score.time_s for score in oort.scores] == [None, 40.0, 40.0, 40.0, 40.0]
    assert oort.scores[0].speedup == pytest.approx(60 / 200)
    assert oort.scores[0].bound == "<"
    assert oort.speedup.mean == pytest.approx((60 / 200 * (60 / 40) ** 4) ** 0.2)
    assert (oort.speedup.low, oort.reached, len(oort.scores)) == (None, 4, 5)
    assert oort.at(1.0).median_s == 40.0
    content: Any = result.to_json()
    assert content["methods"]["oort"]["speedup"]["bound"] == "<"
    assert "bound" not in content["methods"]["fedavg+1t"]["speedup"]


def test_a_method_that_arrives_on_no_seed_has_a_bound_and_a_median_that_lies_above() -> None:
    runs = [run("fedavg+1t", rising(4), seed) for seed in (0, 1)] + [run("oort", [0.1] * 21, seed) for seed in (0, 1)]
    result = score(runs, {0: BUDGET_S, 1: BUDGET_S})
    found = result["oort"].at(1.0)
    assert (found.median_s, found.above_s, found.reached, found.runs) == (None, 200.0, 0, 2)
    lines = markdown_table(result).splitlines()
    assert "| oort | never, < 0.30× | 0/2 | > 200 s | 0.100 ± 0.000 |" in lines
    assert "it never reached the target" not in write_headline(result)  # that is of fedbalancer only
    assert score(runs, {0: BUDGET_S, 1: BUDGET_S}, rule="paper")["oort"].scores == ()


def test_lower_targets_are_scored_beside_the_main_one() -> None:
    steps = [0.1, 0.1, 0.1, 0.1, 0.73, 0.73, 0.73, 0.78, 0.78, 0.78, 0.8, 0.8, 0.8]
    result = score([run("fedavg+1t", rising(8)), run("oort", steps)], {0: BUDGET_S})
    assert [result["oort"].at(share).median_s for share in (1.0, 0.95, 0.9)] == [120.0, 80.0, 60.0]
    assert result["oort"].at(0.9).target == pytest.approx(0.72)
    with pytest.raises(BadSetting, match=r"0\.5 was not scored"):
        result["oort"].at(0.5)
    own = score([run("fedavg+1t", rising(8)), run("oort", steps)], {0: BUDGET_S}, targets=[0.9])
    assert own["oort"].speedup.mean == pytest.approx(100 / 60)
    with pytest.raises(BadSetting, match="greater than 0"):
        score([], {}, targets=[0.0])


def test_any_two_methods_can_be_compared_seed_by_seed() -> None:
    runs = [run("fedavg+1t", rising(5), 0), run("prox+1t", rising(3, high=0.9), 0), run("prox+2t", rising(7), 0)]
    result = score([*runs, run("fedbalancer", rising(1), 0)], {0: BUDGET_S})
    assert result.ratio("fedbalancer", "prox+1t").mean == pytest.approx(50 / 30)
    assert result.ratio("fedbalancer", ["prox+1t", "prox+2t"]).mean == pytest.approx(50 / 30)
    with pytest.raises(UnknownName, match="prox"):
        result.ratio("fedbalancer", "prox+3t")


def test_runs_of_older_versions_are_read_off_at_the_times_of_the_grid_with_a_note() -> None:
    def old(method: str, points: list[tuple[float, float]]) -> RunCurve:
        times, accuracies = zip(*points, strict=True)
        return RunCurve(method, 0, pl.DataFrame({"start_s": times, "clock_s": times, "accuracy": accuracies}))

    reference = old("fedavg+1t", [(0.0, 0.1), (50.0, 0.8), (100.0, 0.8)])
    result = score([reference, old("oort", [(0.0, 0.1), (25.0, 0.9), (100.0, 0.9)])], {0: BUDGET_S})
    assert result["oort"].scores[0].time_s == pytest.approx(30.0)  # 26, 28, 30: the first three times with that model
    assert result["fedavg+1t"].scores[0].time_s == pytest.approx(54.0)
    assert any("evaluated by rounds only" in note for note in result.notes)


def test_the_authors_stamp_belongs_to_their_rule() -> None:
    with pytest.raises(BadSetting, match="requires the rule 'paper'"):
        score([], {}, stamp="start")
    with pytest.raises(UnknownName, match="fair"):
        score([], {}, rule="fare")


def test_the_costs_are_those_until_the_target_and_within_the_budget() -> None:
    traffic = pl.DataFrame({
        "start_s": [0.0, 50.0, 90.0], "end_s": [50.0, 90.0, 130.0], "sample_passes": [1.0, 2.0, 4.0],
        "device_s": [10.0, 20.0, 40.0], "down_bytes": [1, 2, 4], "up_bytes": [3, 3, 3],
    })  # fmt: skip
    result = score([run("fedavg+1t", rising(4, 14), traffic=traffic)], {0: BUDGET_S})
    found = result["fedavg+1t"]
    assert (found.at(1.0).median_s, found.at(1.0).cost.device_s, found.at(1.0).cost.up_bytes) == (60.0, 10.0, 3.0)
    assert (found.cost.sample_passes, found.cost.device_s, found.cost.down_bytes) == (3.0, 30.0, 3.0)
    old = traffic.with_columns(device_s=pl.Series([None, 20.0, 40.0]))
    partly = score([run("fedavg+1t", rising(4, 14), traffic=old)], {0: BUDGET_S})["fedavg+1t"]
    assert partly.cost.device_s is None, "what was not recorded is not 0"
    assert partly.cost.up_bytes == 6.0


def test_the_headline_says_whether_the_interval_excludes_one() -> None:
    def compared(ours: list[int]) -> Comparison:
        runs = [run("fedavg+1t", rising(8), seed) for seed in range(len(ours))]
        runs += [run("fedbalancer", rising(at), seed) for seed, at in enumerate(ours)]
        return score(runs, dict.fromkeys(range(len(ours)), BUDGET_S))

    clear = write_headline(compared([2, 3, 2, 3, 2]))
    assert "fedbalancer reached the target accuracy of 80.0% first" in clear
    assert "excludes 1: the difference is resolved" in clear
    unclear = write_headline(compared([2, 8, 7, 8, 8]))
    assert "includes 1: this can be chance" in unclear
    assert "One seed cannot separate" in write_headline(compared([2]))


@given(st.lists(st.lists(st.integers(0, 100), min_size=11, max_size=25), min_size=1, max_size=3))
def test_the_reference_always_holds_its_own_final_accuracy_within_the_budget(runs: list[list[int]]) -> None:
    curves = [run(f"fedavg+{place}t", [a / 100 for a in values]) for place, values in enumerate(runs)]
    result = score(curves, {0: BUDGET_S})
    seed = result.seeds[0]
    times = {s.method: s.time_s for s in seed.scores}
    assert times[seed.reference] is not None
    assert times[seed.reference] <= BUDGET_S
    assert result[seed.reference].speedup.mean == 1.0
    for method in result.methods:
        at = [method.at(share).median_s for share in (0.9, 0.95, 1.0)]
        known = [time_s for time_s in at if time_s is not None]
        assert known == sorted(known), "a lower target is never reached later"


def test_the_time_curve_has_a_median_for_every_level_and_counts_who_never_came() -> None:
    runs = [run("fedavg+1t", rising(4), seed) for seed in range(3)]
    runs += [run("oort", rising(2, high=0.5 if seed else 0.9), seed) for seed in range(3)]
    found = time_curve(runs, dict.fromkeys(range(3), BUDGET_S), levels=[0.4, 0.8])
    assert found.columns == ["method", "accuracy", "median_s", "above_s", "reached", "runs"]
    assert found.rows() == [
        ("fedavg+1t", 0.4, 50.0, None, 3, 3), ("fedavg+1t", 0.8, 60.0, None, 3, 3),
        ("oort", 0.4, 40.0, None, 3, 3), ("oort", 0.8, None, 100.0, 1, 3),
    ]  # fmt: skip
    late = [
        run("prox+1t", rising(12, 21), seed) for seed in range(3)
    ]  # carried on beyond the budget, as others were not
    assert time_curve(late, dict.fromkeys(range(3), BUDGET_S), levels=[0.8]).row(0)[2:] == (None, 100.0, 0, 3)
    whole = time_curve(runs, dict.fromkeys(range(3), BUDGET_S))
    assert whole.height == 2 * 50
    assert time_curve([], {}).is_empty()
