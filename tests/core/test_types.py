"""Values: immutable, and what they compute."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
from builders import Unchanged, make_ledger, make_report, make_result, same
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.types import RECENT_COUNTS, Layout, Ledger, RoundResult, Timings, batches_per_epoch
from fedbalancer.core.types.round import total
from fedbalancer.core.types.state import Positions


def start() -> Ledger:
    return Ledger.start(
        ("ann", "bob", "cid"), np.array([10, 20, 30]), np.array([1.0, 2.0, 3.0]), np.array([[1.0, 3.0]] * 3)
    )


class TestStart:
    def test_a_new_ledger_has_no_reports(self) -> None:
        ledger = start()
        assert not ledger.explored.any()
        assert ledger.last_round.tolist() == [0, 0, 0]
        assert np.isnan(ledger.over_count).all()
        assert np.isnan(ledger.over_sumsq).all()

    def test_the_latencies_sampled_before_training_count(self) -> None:
        assert start().batch_s.tolist() == [2.0, 2.0, 2.0]
        assert start().batch_s_count.tolist() == [2, 2, 2]

    def test_recent_counts_begin_at_the_full_size(self) -> None:
        assert start().recent_trained.tolist() == [[10.0] * 5, [20.0] * 5, [30.0] * 5]

    def test_rows_are_found_by_client(self) -> None:
        assert start().rows(("cid", "ann")).tolist() == [2, 0]
        assert start().rows(()).tolist() == []
        with pytest.raises(KeyError):
            start().rows(("dan",))


class TestRecord:
    def test_a_report_changes_its_clients_row_and_no_other(self) -> None:
        before = start()
        report = make_report("bob", trained=7, batch_s=8.0, over_count=4.0, over_sumsq=9.0)
        result = make_result([report], missing=["cid"], round=6)
        with Unchanged(before, result):
            after = before.record(result)
        assert after.batch_s.tolist() == [2.0, pytest.approx(12 / 3), 2.0]
        assert after.recent_trained.tolist() == [[10.0] * 5, [20.0, 20.0, 20.0, 20.0, 7.0], [30.0] * 5]
        assert after.participations.tolist() == [0, 1, 0]
        assert after.last_round.tolist() == [0, 6, 0]
        assert after.explored.tolist() == [False, True, False]
        assert (after.over_count[1], after.over_sumsq[1]) == (4.0, 9.0)
        assert np.isnan(after.over_count[[0, 2]]).all()
        assert same((after.clients, after.size, after.network_s), (before.clients, before.size, before.network_s))

    def test_only_the_last_five_counts_are_kept(self) -> None:
        ledger = start()
        for number in range(1, 8):
            ledger = ledger.record(make_result([make_report("ann", trained=number)], round=number))
        assert ledger.recent_trained[0].tolist() == [3.0, 4.0, 5.0, 6.0, 7.0]
        assert len(ledger.recent_trained[0]) == RECENT_COUNTS
        assert (ledger.participations[0], ledger.last_round[0], ledger.batch_s_count[0]) == (7, 7, 9)

    def test_a_round_without_reports_changes_nothing(self) -> None:
        ledger = start()
        assert same(ledger.record(make_result(missing=["ann", "bob"])), ledger)

    def test_the_order_of_reports_does_not_matter(self) -> None:
        ledger = make_ledger()
        reports = [make_report(client, trained=number) for number, client in enumerate(("c0", "c3", "c5"))]
        assert same(ledger.record(make_result(reports)), ledger.record(make_result(reports[::-1])))


SIZES = (10, 20, 30, 40, 50)
COLUMNS = (
    "batch_s_sum", "batch_s_count", "recent_trained", "over_count", "over_sumsq", "loss_mean",
    "participations", "last_round",
)  # fmt: skip
reported = st.tuples(st.integers(1, 9), st.floats(0, 9), st.floats(0, 9), st.floats(0.1, 9))
played = st.lists(st.dictionaries(st.integers(0, len(SIZES) - 1), reported), max_size=8)


def results(rounds: list[dict[int, tuple[int, float, float, float]]]) -> list[RoundResult]:
    return [
        make_result(
            [
                make_report(
                    f"c{row}", trained=trained, over_count=count, over_sumsq=sumsq, batch_s=batch_s, loss_sum=count
                )
                for row, (trained, count, sumsq, batch_s) in reports.items()
            ],
            round=number,
        )
        for number, reports in enumerate(rounds, start=1)
    ]


@given(played)
def test_a_ledger_equals_one_record_per_client(
    rounds: list[dict[int, tuple[int, float, float, float]]],
) -> None:
    ledger = make_ledger(SIZES, batch_s=2.0)
    for result in results(rounds):
        ledger = ledger.record(result)
    for row, size in enumerate(SIZES):
        heard = [(number, reports[row]) for number, reports in enumerate(rounds, start=1) if row in reports]
        last = heard[-1] if heard else (0, (0, math.nan, math.nan, 0.0))
        latencies = [2.0, *(report[3] for _, report in heard)]
        expected = (
            total(latencies), len(latencies), ([size] * 5 + [report[0] for _, report in heard])[-5:], last[1][1],
            last[1][2], last[1][1] / 10.0, len(heard), last[0],
        )  # fmt: skip
        for name, value in zip(COLUMNS, expected, strict=True):
            np.testing.assert_equal(getattr(ledger, name)[row].tolist(), value, err_msg=name)


@given(played)
def test_a_ledger_is_immutable(rounds: list[dict[int, tuple[int, float, float, float]]]) -> None:
    versions = [make_ledger(SIZES)]
    with Unchanged(versions[0]):
        for result in results(rounds):
            with Unchanged(*versions):
                versions.append(versions[-1].record(result))


def test_the_timings_of_a_client_add_up() -> None:
    assert Timings(1.0, 2.0, 3.0, 4.0, 5.0).total_s == 15.0
    assert Timings().total_s == 0.0
    assert math.isinf(Timings(paused_s=math.inf).total_s)


@given(st.lists(st.integers(0, 10_000), min_size=1), st.integers(1, 500), st.none() | st.integers(1, 9))
def test_an_epoch_has_a_short_last_batch_and_at_least_one(samples: list[int], size: int, most: int | None) -> None:
    expected = [min(max(math.ceil(n / size), 1), most or math.inf) for n in samples]
    assert batches_per_epoch(np.array(samples), size, most).tolist() == expected
    assert batches_per_epoch(np.array(samples, dtype=float), size, most).tolist() == expected
    assert [batches_per_epoch(n, size, most) for n in samples] == expected


def test_the_batches_of_a_fractional_count_are_truncated_as_by_the_authors() -> None:
    assert batches_per_epoch(np.array([10.2, 10.8, 11.0, 11.2]), 10).tolist() == [1.0, 1.0, 2.0, 2.0]


LAYOUT = Layout((("scale", ()), ("weight", (2, 3)), ("none", (0, 4)), ("bias", (2,))))


def test_a_layout_has_sizes_and_spans() -> None:
    assert LAYOUT.sizes == (1, 6, 0, 2)
    assert (LAYOUT.parameters, LAYOUT.wire_bytes) == (9, 36)
    assert LAYOUT.spans == {"scale": slice(0, 1), "weight": slice(1, 7), "none": slice(7, 7), "bias": slice(7, 9)}


def test_a_layout_splits_a_vector_into_views_and_joins_them_again() -> None:
    vector = np.arange(9, dtype=np.float32)
    tensors = LAYOUT.split(vector)
    assert {name: tensor.shape for name, tensor in tensors.items()} == dict(LAYOUT)
    assert all(np.shares_memory(tensor, vector) for tensor in tensors.values() if tensor.size)
    assert tensors["weight"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert LAYOUT.join(dict(reversed(tensors.items()))).tobytes() == vector.tobytes(), "in the order of the layout"
    assert LAYOUT.join({name: tensor.astype(np.float64) for name, tensor in tensors.items()}).dtype == np.float32


def test_a_vector_of_another_length_is_refused() -> None:
    for length in (0, 8, 10):
        with pytest.raises(ValueError, match=f"the layout has 9 numbers, but there are {length} weights"):
            LAYOUT.split(np.zeros(length, dtype=np.float32))


def test_a_layout_can_be_pickled_compared_and_hashed() -> None:
    pairs = tuple(LAYOUT)
    assert pairs == LAYOUT == pickle.loads(pickle.dumps(LAYOUT))
    assert type(pickle.loads(pickle.dumps(LAYOUT))) is Layout
    assert hash(Layout(pairs)) == hash(LAYOUT)
    assert Layout(reversed(pairs)) != LAYOUT


def test_an_empty_layout() -> None:
    assert (Layout().parameters, Layout().wire_bytes, Layout().spans) == (0, 0, {})
    assert Layout().join(Layout().split(np.zeros(0, dtype=np.float32))).shape == (0,)


some_names = st.lists(st.text(max_size=4), unique=True, max_size=20).map(tuple)


@given(some_names, st.booleans(), st.text(max_size=4))
def test_positions_equal_a_dictionary(names: tuple[str, ...], in_order: bool, stranger: str) -> None:
    names = tuple(sorted(names)) if in_order else names
    found, expected = Positions(names), {name: row for row, name in enumerate(names)}
    assert found == expected
    assert list(found) == list(names)
    assert len(found) == len(names)
    assert (stranger in found) == (stranger in expected)
    assert found.of(names[::-1]).tolist() == list(range(len(names)))[::-1]


@pytest.mark.parametrize("name", ["", "a", "bb", "d"])
def test_a_stranger_is_an_error(name: str) -> None:
    for names in (("b", "c"), ("c", "b"), ()):
        with pytest.raises(KeyError, match=repr(name)):
            Positions(names)[name]


def test_copies_of_positions_are_equal() -> None:
    for names in (("a", "b", "c"), ("b", "c", "a")):
        found = Positions(names)
        assert copy.deepcopy(found) == pickle.loads(pickle.dumps(found)) == found
