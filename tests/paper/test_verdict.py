"""Verdicts: our figure against the paper's interval."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.paper.printed import Printed
from fedbalancer.paper.verdict import Ours, compare

NUMBERS = st.floats(0.01, 100, allow_nan=False)
PAPER = Printed(1.56, 0.28)


@pytest.mark.parametrize(
    ("ours", "word", "resolved"),
    [
        (Ours(1.56, 1.5, 1.6), "within", True),
        (Ours(1.56, 1.0, 2.2), "within", False),
        (Ours(2.5, 2.0, 3.0), "better", True),
        (Ours(2.5, 1.5, 3.5), "better", False),
        (Ours(1.0, 0.9, 1.1), "worse", True),
        (Ours(1.0), "worse", None),
        (Ours(1.845), "within", None),  # 1.56 + 0.28, and what may have been rounded away
        (Ours(None), "not measured", None),
        (Ours(None, bound="?"), "unknown", None),
        (Ours(0.4, None, 0.6, "<"), "worse", True),
        (Ours(0.4, None, 1.5, "<"), "worse", False),
        (Ours(2.0, 1.9, None, "<"), "unknown", None),  # below 2.0 may be anywhere
        (Ours(3.0, 2.5, None, ">"), "better", True),
        (Ours(1.5, 1.2, None, ">"), "unknown", None),
    ],
)
def test_the_words(ours: Ours, word: str, resolved: bool | None) -> None:
    verdict = compare(ours, PAPER)
    assert (verdict.word, verdict.resolved) == (word, resolved)


def test_less_may_be_better_or_neither() -> None:
    assert compare(Ours(3.0), PAPER, more_is_better=False).word == "worse"
    assert compare(Ours(3.0), PAPER, more_is_better=None).word == "above"


def test_what_the_paper_does_not_have_gets_no_verdict() -> None:
    assert compare(Ours(1.0, 0.9, 1.1), None).words == "not in the paper"


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.floats(0, 10))
def test_a_resolved_verdict_holds_everywhere_in_the_interval(
    a: float, b: float, c: float, mean: float, std: float
) -> None:
    low, middle, high = sorted((a, b, c))
    paper = Printed(mean, std)
    verdict = compare(Ours(middle, low, high), paper)
    inside = [compare(Ours(value), paper).word for value in (low, middle, high)]
    assert verdict.word == inside[1]
    assert verdict.resolved == (len(set(inside)) == 1)


@given(NUMBERS, NUMBERS, st.floats(0, 10))
def test_by_how_much(value: float, mean: float, std: float) -> None:
    verdict = compare(Ours(value), Printed(mean, std))
    assert verdict.factor == pytest.approx(value / mean)
    assert verdict.difference == pytest.approx(value - mean)
    if verdict.word == "better":
        assert value > mean + std
    if verdict.word == "worse":
        assert value < mean - std
