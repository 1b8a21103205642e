"""Random numbers named by what they are for."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedbalancer.core.randomness import client_keys, integer_seed, normals, stream, tickets, uniforms

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
    code = """
from fedbalancer.core.randomness import client_keys, stream, uniforms
print(stream(3, 'batches', 7, 'zoë').integers(2**62), uniforms(3, 'batches', 7, client_keys(['zoë']))[0])
"""
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    whole, part = other.stdout.split()
    assert int(whole) == first((3, "batches", 7, "zoë"))
    assert float(part) == uniforms(3, "batches", 7, client_keys(["zoë"]))[0]


def test_the_global_generator_is_left_alone() -> None:
    before = repr(np.random.get_state())  # noqa: NPY002 - it is the global generator that is looked at
    stream(0, "clients").random(100)
    assert repr(np.random.get_state()) == before  # noqa: NPY002


def splitmix64(state: int, count: int) -> list[int]:
    """Steele, Lea and Flood's generator, word by word."""
    words = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        words.append(mixed(state))
    return words


def mixed(word: int) -> int:
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return word ^ word >> 31


class TestManyAtOnce:
    @given(streams, st.lists(st.text(max_size=6), min_size=1, max_size=8), st.data())
    def test_a_clients_number_does_not_depend_on_who_is_asked_with_it(
        self, name: tuple[int, str, int, str], clients: list[str], data: st.DataObject
    ) -> None:
        seed, purpose, round, _ = name
        number = data.draw(st.integers(0, 2**40))
        together = uniforms(seed, purpose, round, client_keys(clients), number)
        alone = [uniforms(seed, purpose, round, client_keys([client]), number)[0] for client in clients]
        assert together.tolist() == alone
        assert ((together > 0) & (together < 1)).all()

    @given(streams, st.integers(0, 2**64 - 1))
    def test_the_numbers_of_a_key_are_those_of_splitmix64(self, name: tuple[int, str, int, str], key: int) -> None:
        seed, purpose, round, _ = name
        keys = np.array([key], dtype=np.uint64)
        hashed = hashlib.blake2b(f"{seed}\x1f{purpose}\x1f{round}\x1f".encode(), digest_size=32).digest()
        begun = key ^ int.from_bytes(hashed[:8], "little")
        expected = [((word >> 12) + 0.5) / 2**52 for word in splitmix64(begun, 4)]
        found = uniforms(seed, purpose, round, keys, np.arange(4, dtype=np.uint64))
        assert found.tolist() == expected
        assert [uniforms(seed, purpose, round, keys, number)[0] for number in range(4)] == expected

    def test_known_words_of_splitmix64(self) -> None:
        assert splitmix64(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]

    def test_every_part_of_the_name_matters(self) -> None:
        keys = client_keys(["ann", "bob"])
        asked = [(0, "speed", 1, 0), (1, "speed", 1, 0), (0, "size", 1, 0), (0, "speed", 2, 0), (0, "speed", 1, 1)]
        found = [uniforms(seed, purpose, round, keys, number) for seed, purpose, round, number in asked]
        assert len({value for row in found for value in row}) == 10

    def test_numbers_are_uniform_and_independent_over_clients_rounds_and_counts(self) -> None:
        keys = client_keys(f"u{number:05d}" for number in range(400))
        table = np.array([[uniforms(7, "x", round, keys, number) for number in range(5)] for round in range(20)])
        assert stats.kstest(table.ravel(), "uniform").pvalue > 0.001
        for axis in range(3):
            first, second = np.swapaxes(table, 0, axis)[:-1].ravel(), np.swapaxes(table, 0, axis)[1:].ravel()
            assert abs(np.corrcoef(first, second)[0, 1]) < 4.5 / np.sqrt(len(first))

    def test_normals_are_normal(self) -> None:
        keys = client_keys(map(str, range(5000)))
        mean, std = np.linspace(-5, 5, 5000), np.linspace(0, 3, 5000)
        drawn = normals(0, "x", 1, keys, mean, std)
        assert stats.kstest((drawn[1:] - mean[1:]) / std[1:], "norm").pvalue > 0.001
        assert drawn[0] == mean[0]

    def test_tickets_are_all_drawn_and_equally_likely(self) -> None:
        drawn = tickets(0, "x", 1, client_keys(map(str, range(7000))), 7)
        assert stats.chisquare(np.bincount(drawn, minlength=7)).pvalue > 0.001
        assert set(tickets(0, "x", 1, client_keys("abc"), 1)) == {0}

    def test_nobody_gets_nothing(self) -> None:
        assert uniforms(0, "x", 1, client_keys([])).shape == (0,)
