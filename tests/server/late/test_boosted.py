"""REFL's weights of stale reports, to the number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from builders import make_report, make_setup, make_state
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import ClientReport
from fedbalancer.methods.table import method
from fedbalancer.server.late import Boosted
from fedbalancer.testing import check_policy


def report(client: str, update: Sequence[float], staleness: int = 0, weight: float = 10.0) -> ClientReport:
    return replace(make_report(client, update, weight), staleness=staleness)


def weights(reports: Sequence[ClientReport], beta: float = 0.35) -> dict[str, float]:
    return {each.client: each.weight for each in Boosted(beta).weighted(make_setup(), make_state(), reports)}


def test_keeps_the_contract() -> None:
    assert check_policy(Boosted()) == "late"


def test_the_papers_rule_in_numbers() -> None:
    fresh = [report("a", (1.0, 0.0)), report("b", (1.0, 0.0))]
    stale = [report("c", (1.0, 0.0), 1), report("d", (0.0, 0.0), 1, 20.0), report("e", (-1.0, 0.0), 3)]
    # They would move the mean (1, 0) of two by 0, 1/3 and 2/3 of its length, so L / Lmax is 0, 1/4 and 1.
    found = weights([*fresh, *stale])
    assert found["a"] == found["b"] == 10.0
    assert found["c"] == pytest.approx(10 * 0.65 / 2)
    assert found["d"] == pytest.approx(20 * (0.65 / 2 + 0.35 * (1 - math.exp(-0.25))))
    assert found["e"] == pytest.approx(10 * (0.65 / 4 + 0.35 * (1 - math.exp(-1))))


@pytest.mark.parametrize("fresh", [[], [report("a", (0.0, 0.0))]], ids=["none", "no step"])
def test_with_nothing_to_differ_from_only_the_age_counts(fresh: list[ClientReport]) -> None:
    found = weights([*fresh, report("b", (1.0, 0.0), 1), report("c", (5.0, 0.0), 4)])
    assert (found["b"], found["c"]) == (pytest.approx(10 * 0.65 / 2), pytest.approx(10 * 0.65 / 5))


@given(st.lists(st.tuples(st.floats(-9, 9), st.integers(1, 50)), min_size=1, max_size=6), st.floats(0, 0.99))
def test_a_stale_report_never_counts_for_more_than_a_fresh_one(stale: list[tuple[float, int]], beta: float) -> None:
    reports = [report("a", (1.0, 2.0))]
    reports += [report(f"b{n}", (value, 1.0), age) for n, (value, age) in enumerate(stale)]
    found = weights(reports, beta)
    assert found.pop("a") == 10.0
    assert all(0 <= value <= 10.0 for value in found.values())
    assert all(np.isfinite(value) for value in found.values())


@pytest.mark.parametrize("beta", [-0.1, 1.0])
def test_a_beta_that_makes_no_sense_is_refused(beta: float) -> None:
    with pytest.raises(BadSetting, match=r"cannot run: Boosted\(beta=.* at least 0, below 1"):
        method("fedavg+1t", late=Boosted(beta))


def test_without_stale_reports_nothing_changes() -> None:
    fresh = [report("a", (1.0, 0.0))]
    assert Boosted().weighted(make_setup(), make_state(), fresh) is fresh
