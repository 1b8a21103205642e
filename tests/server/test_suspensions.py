"""Who sends nonsense sits out, longer every time, and longer than a restart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from builders import make_ledger, make_report, make_result

from fedbalancer.core.types import Missing, RoundResult
from fedbalancer.server.suspensions import INVALID, MOST_ROUNDS, Bench


def offence(client: str, round: int, *good: str) -> RoundResult:
    result = make_result([make_report(name) for name in good], [client], round=round)
    return replace(result, missing=(Missing(client, INVALID),))


def test_an_offender_sits_out_one_round_then_two_then_four() -> None:
    bench, round, out = Bench(), 1, []
    for _ in range(4):
        bench = bench.after(offence("c1", round, "c0"))
        last = round
        while bench.without(["c0", "c1"], round) == ["c0"]:
            round += 1
        out.append(round - last)
        round += 1
    assert out == [1, 2, 4, 8]


def test_no_more_than_64_rounds_and_a_sound_report_makes_good() -> None:
    bench = Bench({"c1": 40}, {"c1": 3}).after(offence("c1", 10, "c0"))
    assert bench.until["c1"] == 10 + MOST_ROUNDS
    assert bench.after(make_result([make_report("c1")])) == Bench()


def test_honest_rounds_leave_it_as_it_is() -> None:
    bench = Bench()
    assert bench.after(make_result([make_report("c0")], ["c1"])) is bench


def test_rounds_in_which_all_were_wrong_are_counted() -> None:
    bench = Bench().after(offence("c1", 1)).after(offence("c2", 2))
    assert bench.in_vain == 2
    assert bench.after(offence("c1", 3, "c0")).in_vain == 0


def test_who_does_not_answer_sits_out_as_long_until_it_reports_or_restarts() -> None:
    bench = Bench().unanswered(["c1"], 3)
    assert (bench.until, bench.silent) == ({"c1": 4}, ("c1",))
    twice = bench.unanswered(["c1", "c2"], 6)
    assert twice.until == {"c1": 8, "c2": 7}
    assert twice.answering(["c1", "c0"]) == Bench({"c2": 1}, {"c2": 7}, silent=("c2",))
    assert twice.after(make_result([make_report("c1"), make_report("c2")])) == Bench()
    invalid = bench.after(offence("c1", 6, "c0"))
    assert invalid.until == {"c1": 8}
    assert invalid.answering(["c1"]) is invalid, "a restart does not excuse an invalid report"
    assert Bench().unanswered([], 3) == Bench()


def test_rows_are_those_of_the_others_or_all_if_there_are_none() -> None:
    ledger, bench = make_ledger([10, 10, 10]), Bench({"c1": 1, "gone": 1}, {"c1": 5})
    assert bench.rows_without(ledger, np.array([0, 1, 2]), 4).tolist() == [0, 2]
    assert bench.rows_without(ledger, np.array([0, 1, 2]), 5).tolist() == [0, 1, 2]
    assert bench.rows_without(ledger, np.array([1]), 4).tolist() == [1]
