"""Counts of releases, and who may be asked again."""

from __future__ import annotations

import numpy as np
import pytest
from builders import make_report, make_result

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import Ledger
from fedbalancer.privacy import Spending, epsilon_of, spending_of

pytest.importorskip("dp_accounting")

LEDGER = Ledger.start(("a", "b", "c"), np.array([5, 5, 5]), np.ones(3), np.ones((3, 1)))
EVERYBODY = np.arange(3)


def test_who_may_have_sent_something_counts_whether_it_was_in_time_or_not() -> None:
    result = make_result([make_report("a")], missing=["b"])  # b is missing for "train"
    careful, sure = Spending(), Spending(quiet=["train"])
    for spending in (careful, sure):
        spending.note(result)
    assert dict(careful.releases) == {"a": 1, "b": 1}
    assert dict(sure.releases) == {"a": 1}


def test_a_client_at_its_budget_is_asked_no_more_and_others_are() -> None:
    spending = Spending(most=2)
    for _ in range(2):
        assert spending.allowed(LEDGER, EVERYBODY).tolist() == [0, 1, 2]
        spending.note(make_result([make_report("b")]))
    assert spending.allowed(LEDGER, EVERYBODY).tolist() == [0, 2]
    assert not spending.may("b")
    assert not spending.is_over(LEDGER.clients)
    spending.load({"a": 2, "b": 2, "c": 2})
    assert spending.is_over(LEDGER.clients)
    assert spending.allowed(LEDGER, EVERYBODY).tolist() == []


def test_counts_come_back_from_a_checkpoint() -> None:
    spending, other = Spending(), Spending()
    spending.note(make_result([make_report("b")]))
    saved = spending.to_array(LEDGER.clients)
    other.load(dict(zip(LEDGER.clients, saved.tolist(), strict=True)))
    assert other.releases == spending.releases


def test_the_last_release_allowed_is_the_last_within_the_budget() -> None:
    spending = spending_of(7.11, budget=2.0)
    assert spending is not None
    assert spending.most is not None
    assert epsilon_of(7.11, spending.most) <= 2 < epsilon_of(7.11, spending.most + 1)


def test_without_noise_or_words_there_is_nothing_to_count_and_a_budget_makes_no_sense() -> None:
    assert spending_of(0.0) is spending_of(float("inf")) is None
    with pytest.raises(BadSetting, match="epsilon inf already"):
        spending_of(0.0, budget=8.0)
    with pytest.raises(BadSetting, match="it needs noise"):
        spending_of(0.1, budget=1.0)
