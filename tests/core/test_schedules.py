"""Schedules: rates by round, texts that name them, and errors that help."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedbalancer as fb
from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.schedules import (
    Cosine,
    LinearWarmup,
    Schedule,
    StepDecay,
    describe_rate,
    rate_of_round,
    read_schedule,
)

rates = st.floats(1e-6, 100)
counts = st.integers(1, 200)
schedules = st.one_of(
    st.builds(
        lambda rate, rounds, warmup, end: Cosine(rate, rounds=rounds + warmup, end=end, warmup=warmup),
        rates, counts, st.integers(0, 50), st.floats(0.001, 1),
    ),
    st.builds(
        lambda rate, every, factor, warmup: StepDecay(rate, every=every, factor=factor, warmup=warmup),
        rates, st.integers(20, 200), st.floats(0.1, 1), st.integers(0, 50),
    ),
    st.builds(lambda rate, rounds: LinearWarmup(rate, rounds=rounds), rates, counts),
)  # fmt: skip


@given(schedules, counts)
def test_rates_are_above_0_and_never_over_the_largest(schedule: Schedule, number: int) -> None:
    assert 0 < schedule(number) <= schedule.rate * (1 + 1e-12)


@given(schedules)
def test_a_rate_rises_in_the_warmup_and_falls_afterwards(schedule: Schedule) -> None:
    warmup = getattr(schedule, "warmup", getattr(schedule, "rounds", 0))
    values = [schedule(number) for number in range(1, 260)]
    assert values[warmup] == pytest.approx(schedule.rate)
    assert values[: warmup + 1] == sorted(values[: warmup + 1])
    assert values[warmup:] == sorted(values[warmup:], reverse=True)


@given(schedules)
def test_a_schedule_is_a_value_and_its_text_reads_back(schedule: Schedule) -> None:
    assert read_schedule(str(schedule)) == schedule
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert hash(schedule) == hash(read_schedule(schedule))


def test_cosine_reaches_its_end_in_the_named_round_and_stays() -> None:
    schedule = fb.schedules.Cosine(0.2, rounds=10, end=0.05)
    assert [schedule(number) for number in (1, 10, 11, 1000)] == pytest.approx([0.2, 0.01, 0.01, 0.01])


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        ("cosin(rounds=5)", UnknownName, "did you mean cosine"),
        ("cosine", BadSetting, "needs rounds, as in cosine(rounds=50)"),
        ("cosine(50)", BadSetting, "must look like cosine(rounds=50)"),
        ("cosine(rounds=5, warmup=5)", BadSetting, "warmup = 5 must be less than rounds = 5"),
        ("cosine(rounds=0)", BadSetting, "rounds = 0 must be"),
        ("cosine(rounds=5, end=0)", BadSetting, "end = 0 must be"),
        ("step(ever=5)", UnknownName, "did you mean every"),
        ({"name": "step", "every": "5"}, BadSetting, "every = '5'"),
        ({"every": 5}, BadSetting, "a table with a name"),
        (7, BadSetting, "a table with a name"),
        (lambda number: 0.1, BadSetting, "pass another function as learning_rate"),
    ],
)
def test_a_bad_schedule_is_named(value: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        read_schedule(value)
    assert words in str(caught.value)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), None, "fast", [1]])
def test_a_function_that_returns_no_rate_is_named_with_its_round(value: object) -> None:
    with pytest.raises(BadSetting, match="in round 3; it must be a finite number > 0"):
        rate_of_round(lambda number: value, None, 3)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("rate", [lambda: 0.1, lambda number: [0.1][number]])
def test_a_function_that_fails_is_named_with_its_round(rate: Any) -> None:
    with pytest.raises(BadSetting, match=r"fails in round 3: \w+Error: .*; it gets the round number, from 1"):
        rate_of_round(rate, None, 3)


def test_a_schedule_multiplies_the_rate() -> None:
    assert rate_of_round(0.4, LinearWarmup(rounds=3), 1) == pytest.approx(0.1)
    assert rate_of_round(lambda number: number, StepDecay(every=2, factor=0.5), 3) == pytest.approx(1.5)
    assert describe_rate(Cosine(0.4, rounds=3)) == "cosine(rate=0.4,rounds=3)"
