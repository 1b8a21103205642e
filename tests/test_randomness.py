"""Random numbers named by what they are for."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedbalancer.randomness import integer_seed, stream

streams = st.tuples(st.integers(-5, 2**40), st.text(max_size=8), st.integers(0, 2**40), st.text(max_size=8))


def first(name: tuple[int, str, int, str]) -> int:
    return int(stream(*name).integers(2**62))


@given(streams)
def test_the_same_name_gives_the_same_numbers(name: tuple[int, str, int, str]) -> None:
    assert stream(*name).random(5).tolist() == stream(*name).random(5).tolist()
    assert integer_seed(*name) == integer_seed(*name)
    assert 0 <= integer_seed(*name) < 2**63


def test_every_part_of_the_name_matters() -> None:
    base = (0, "clients", 1, "ann")
    others = [(1, "clients", 1, "ann"), (0, "samples", 1, "ann"), (0, "clients", 2, "ann"), (0, "clients", 1, "bob")]
    assert len({first(name) for name in [base, *others]}) == 5


def test_parts_do_not_run_into_each_other() -> None:
    assert first((1, "a", 11, "")) != first((1, "a", 1, "1"))
    assert first((11, "a", 1, "")) != first((1, "1a", 1, ""))


def test_neighbouring_streams_are_independent_and_uniform() -> None:
    drawn = np.array(
        [
            stream(seed, "x", round, str(client)).random()
            for seed, round, client in itertools.product(range(10), repeat=3)
        ]
    )
    assert stats.kstest(drawn, "uniform").pvalue > 0.001
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.1


def test_another_process_draws_the_same() -> None:
    code = "from fedbalancer.randomness import stream; print(stream(3, 'batches', 7, 'zoë').integers(2**62))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(other.stdout) == first((3, "batches", 7, "zoë"))


def test_the_global_generator_is_left_alone() -> None:
    before = repr(np.random.get_state())  # noqa: NPY002 - it is the global generator that is looked at
    stream(0, "clients").random(100)
    assert repr(np.random.get_state()) == before  # noqa: NPY002
