"""Clients with invalid reports are suspended, longer every time, also across restarts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from builders import make_ledger, make_report, make_result

from fedbalancer.core.types import FailedClient, RoundResult
from fedbalancer.server.report_check import INVALID, MAX_ROUNDS, Suspensions


def offence(client: str, round: int, *good: str) -> RoundResult:
    result = make_result([make_report(name) for name in good], [client], round=round)
    return replace(result, missing=(FailedClient(client, INVALID),))


def test_an_offender_sits_out_one_round_then_two_then_four() -> None:
    suspensions, round, out = Suspensions(), 1, []
    for _ in range(4):
        suspensions = suspensions.after(offence("c1", round, "c0"))
        last = round
        while suspensions.eligible(["c0", "c1"], round) == ["c0"]:
            round += 1
        out.append(round - last)
        round += 1
    assert out == [1, 2, 4, 8]


def test_no_more_than_64_rounds_and_a_sound_report_makes_good() -> None:
    suspensions = Suspensions({"c1": 40}, {"c1": 3}).after(offence("c1", 10, "c0"))
    assert suspensions.until["c1"] == 10 + MAX_ROUNDS
    assert suspensions.after(make_result([make_report("c1")])) == Suspensions()


def test_honest_rounds_leave_it_as_it_is() -> None:
    suspensions = Suspensions()
    assert suspensions.after(make_result([make_report("c0")], ["c1"])) is suspensions


def test_rounds_in_which_all_were_wrong_are_counted() -> None:
    suspensions = Suspensions().after(offence("c1", 1)).after(offence("c2", 2))
    assert suspensions.fruitless_rounds == 2
    assert suspensions.after(make_result(missing=["c0"])).fruitless_rounds == 2, "nobody reported"
    assert suspensions.after(offence("c1", 3, "c0")).fruitless_rounds == 0


def test_who_does_not_answer_sits_out_as_long_until_it_reports_or_restarts() -> None:
    suspensions = Suspensions().suspend_silent(["c1"], 3)
    assert (suspensions.until, suspensions.silent) == ({"c1": 4}, ("c1",))
    twice = suspensions.suspend_silent(["c1", "c2"], 6)
    assert twice.until == {"c1": 8, "c2": 7}
    assert twice.clear_silent(["c1", "c0"]) == Suspensions({"c2": 1}, {"c2": 7}, silent=("c2",))
    assert twice.after(make_result([make_report("c1"), make_report("c2")])) == Suspensions()
    invalid = suspensions.after(offence("c1", 6, "c0"))
    assert invalid.until == {"c1": 8}
    assert invalid.clear_silent(["c1"]) is invalid, "a restart does not excuse an invalid report"
    assert Suspensions().suspend_silent([], 3) == Suspensions()


def test_rows_are_those_of_the_others_or_all_if_there_are_none() -> None:
    ledger, suspensions = make_ledger([10, 10, 10]), Suspensions({"c1": 1, "gone": 1}, {"c1": 5})
    assert suspensions.eligible_rows(ledger, np.array([0, 1, 2]), 4).tolist() == [0, 2]
    assert suspensions.eligible_rows(ledger, np.array([0, 1, 2]), 5).tolist() == [0, 1, 2]
    assert suspensions.eligible_rows(ledger, np.array([1]), 4).tolist() == [1]
