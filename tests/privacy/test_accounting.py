"""Epsilon and noise, against other ways of dp-accounting to find them; counts of releases."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from builders import make_report, make_result

from fedbalancer.client.summary import Histogram, LossStatistics
from fedbalancer.core.errors import BadSetting, MissingData
from fedbalancer.core.types import Ledger
from fedbalancer.privacy import Spending, epsilon_of, most_releases, noise_for, spending_of
from fedbalancer.privacy.accounting import UNBOUNDED

dp_accounting = pytest.importorskip("dp_accounting")


@pytest.mark.parametrize(("epsilon", "releases"), [(1, 140), (8, 140), (8, 1), (4, 1000)])
def test_calibrated_noise_is_within_a_percent_of_the_general_accountants(epsilon: float, releases: int) -> None:
    from dp_accounting import pld

    def event(sigma: float) -> object:
        return dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(sigma), releases)

    theirs = dp_accounting.calibrate_dp_mechanism(
        lambda: pld.PLDAccountant(value_discretization_interval=1e-3), event, epsilon, 1e-5, tol=1e-4
    )
    assert noise_for(epsilon, releases) == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize("releases", [1, 7, 140])
def test_epsilon_is_within_a_percent_of_the_general_accountants(releases: int) -> None:
    from dp_accounting import pld

    accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(dp_accounting.GaussianDpEvent(7.15), releases)
    assert epsilon_of(7.15, releases) == pytest.approx(accountant.get_epsilon(1e-5), rel=0.01)


def test_noise_and_epsilon_are_inverse() -> None:
    for epsilon in (0.1, 1.0, 8.0, 50.0):
        assert epsilon_of(noise_for(epsilon, 140), 140) == pytest.approx(epsilon, rel=1e-6)


def test_the_noise_that_a_histogram_has_by_itself_is_for_epsilon_8_over_140_rounds() -> None:
    found = epsilon_of(Histogram().noise_multiplier, 140)
    assert 7.9 < found <= 8


@pytest.mark.parametrize(
    ("releases", "expected"), [(1, 1573), (140, 191_900), (1000, 1_360_000)]
)  # fmt: skip
def test_the_papers_noise_on_clipped_losses_gives_the_epsilons_found_before(releases: int, expected: float) -> None:
    """Four statistics of losses in [0, 5] with noise of .5: LLow, LHigh, count and sum of squares."""
    assert epsilon_of(0.5 / math.sqrt(25 + 25 + 1 + 625), releases) == pytest.approx(expected, rel=0.01)


def test_the_papers_mechanism_has_no_epsilon_without_a_clip() -> None:
    assert epsilon_of(LossStatistics(noise_factor=5.0).release(False).noise_multiplier, 1) == math.inf
    clipped = LossStatistics(noise_factor=5.0, utility_samples="all", loss_clip=5.0).release(False)
    assert clipped.noise_multiplier == pytest.approx(5 / math.sqrt(3 * 25 + 1 + 625))
    assert 30 < epsilon_of(clipped.noise_multiplier, 1) < 40


def test_nothing_released_costs_nothing_and_no_noise_everything() -> None:
    assert epsilon_of(1.0, 0) == epsilon_of(math.inf, 5) == 0
    assert epsilon_of(0.0, 1) == math.inf
    assert epsilon_of(0.0, 0) == 0


def test_most_releases_is_the_last_number_within_epsilon() -> None:
    most = most_releases(7.15, 8)
    assert epsilon_of(7.15, most) <= 8 < epsilon_of(7.15, most + 1)
    assert most_releases(0.0, 8) == 0
    assert most_releases(math.inf, 8) == UNBOUNDED


@pytest.mark.parametrize("wrong", [(0, 140, 1e-5), (8, 0, 1e-5), (8, 140, 0), (8, 140, 1), (math.inf, 1, 1e-5)])
def test_nonsense_is_refused(wrong: tuple[float, int, float]) -> None:
    with pytest.raises(BadSetting):
        noise_for(*wrong)


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(MissingData, match="dp-accounting"):
        epsilon_of(1.0, 1)


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
    assert not spending.can_release("b")
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
    with pytest.raises(BadSetting, match="already has epsilon inf"):
        spending_of(0.0, budget=8.0)
    with pytest.raises(BadSetting, match="it needs noise"):
        spending_of(0.1, budget=1.0)
