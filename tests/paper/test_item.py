"""Verdicts: our figure against the paper's interval."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.paper.item import Measured, judge
from fedbalancer.paper.printed import Printed

NUMBERS = st.floats(0.01, 100, allow_nan=False)
PAPER = Printed(1.56, 0.28)


@pytest.mark.parametrize(
    ("ours", "word", "resolved"),
    [
        (Measured(1.56, 1.5, 1.6), "within", True),
        (Measured(1.56, 1.0, 2.2), "within", False),
        (Measured(2.5, 2.0, 3.0), "better", True),
        (Measured(2.5, 1.5, 3.5), "better", False),
        (Measured(1.0, 0.9, 1.1), "worse", True),
        (Measured(1.0), "worse", None),
        (Measured(1.845), "within", None),  # 1.56 + 0.28, and what may have been rounded away
        (Measured(None), "not measured", None),
        (Measured(None, bound="?"), "unknown", None),
        (Measured(0.4, None, 0.6, "<"), "worse", True),
        (Measured(0.4, None, 1.5, "<"), "worse", False),
        (Measured(2.0, 1.9, None, "<"), "unknown", None),  # below 2.0 may be anywhere
        (Measured(3.0, 2.5, None, ">"), "better", True),
        (Measured(1.5, 1.2, None, ">"), "unknown", None),
    ],
)
def test_the_words(ours: Measured, word: str, resolved: bool | None) -> None:
    verdict = judge(ours, PAPER)
    assert (verdict.word, verdict.resolved) == (word, resolved)


def test_less_may_be_better_or_neither() -> None:
    assert judge(Measured(3.0), PAPER, more_is_better=False).word == "worse"
    assert judge(Measured(3.0), PAPER, more_is_better=None).word == "above"


def test_what_the_paper_does_not_have_gets_no_verdict() -> None:
    assert judge(Measured(1.0, 0.9, 1.1), None).text == "not in the paper"


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.floats(0, 10))
def test_a_resolved_verdict_holds_everywhere_in_the_interval(
    a: float, b: float, c: float, mean: float, std: float
) -> None:
    low, middle, high = sorted((a, b, c))
    paper = Printed(mean, std)
    verdict = judge(Measured(middle, low, high), paper)
    inside = [judge(Measured(value), paper).word for value in (low, middle, high)]
    assert verdict.word == inside[1]
    assert verdict.resolved == (len(set(inside)) == 1)


@given(NUMBERS, NUMBERS, st.floats(0, 10))
def test_by_how_much(value: float, mean: float, std: float) -> None:
    verdict = judge(Measured(value), Printed(mean, std))
    assert verdict.factor == pytest.approx(value / mean)
    assert verdict.difference == pytest.approx(value - mean)
    if verdict.word == "better":
        assert value > mean + std
    if verdict.word == "worse":
        assert value < mean - std
