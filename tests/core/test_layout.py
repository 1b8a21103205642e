"""Checks of named arrays: whatever a client sends, only what was declared is accepted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import make_ledger, make_report, make_result, make_setup
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import ServerState
from fedbalancer.core.types.layout import MAX_VALUE, check_shapes, count_bytes, find_array_fault
from fedbalancer.server.report_check import drop_invalid_reports, find_fault

NAMES = st.sampled_from(["c", "d", "", "evil"])
SHAPES = st.dictionaries(st.sampled_from(["c", "d"]), array_shapes(max_dims=2, max_side=3), max_size=2)
ANYTHING = (
    arrays(np.float32, array_shapes(max_dims=2, max_side=3))
    | arrays(st.sampled_from([np.dtype(np.float64), np.dtype(np.int32), np.dtype(bool)]), 2)
    | st.sampled_from([None, "text", 1.0, [1.0], np.float32(1)])
)


@given(st.dictionaries(NAMES, ANYTHING, max_size=3), SHAPES)
def test_only_finite_arrays_of_the_declared_names_and_shapes_are_accepted(sent: dict[str, Any], shapes: Any) -> None:
    fault = find_array_fault(sent, shapes)
    right = set(sent) == set(shapes) and all(
        isinstance(sent[name], np.ndarray)
        and sent[name].dtype == np.float32
        and sent[name].shape == shape
        and np.isfinite(sent[name]).all()
        and np.abs(sent[name]).max(initial=0) <= MAX_VALUE
        for name, shape in shapes.items()
    )
    assert (fault is None) == right
    assert fault is None or len(fault) < 300


@given(SHAPES)
def test_bytes_are_those_of_the_arrays(shapes: Any) -> None:
    assert count_bytes(shapes) == sum(np.zeros(shape, dtype=np.float32).nbytes for shape in shapes.values())


@pytest.mark.parametrize(
    ("shapes", "why"),
    [
        (None, "returned NoneType; it must map names to shapes"),
        ({"a b": (1,)}, "names an array 'a b'"),
        ({"x" * 60: (1,)}, "at most 50 characters"),
        ({"c": 3}, r"the shape 3; it must be a tuple"),
        ({"c": (-1,)}, r"the shape \(-1,\)"),
        ({"c": (True,)}, r"the shape \(True,\)"),
    ],
)
def test_declarations_are_checked(shapes: Any, why: str) -> None:
    with pytest.raises(BadSetting, match=why):
        check_shapes("Mine.up_arrays", shapes)


def test_a_report_with_other_arrays_is_dropped() -> None:
    weights, ledger = np.zeros(2, dtype=np.float32), make_ledger(size=(100, 100, 100))
    setup = replace(make_setup(ledger), report_arrays={"c": (2,)})
    state = ServerState(round=4, clock_s=0.0, weights=weights, ledger=ledger)
    good = replace(make_report("c0"), arrays={"c": np.ones(2, dtype=np.float32)})
    bad = replace(make_report("c1"), arrays={"c": np.array([1.0, np.nan], dtype=np.float32)})
    result = drop_invalid_reports(make_result([good, bad, make_report("c2")], round=5), state, setup)
    assert [report.client for report in result.reports] == ["c0"]
    assert [missing.problem for missing in result.missing] == [
        "array 'c' with a value that is not a finite number",
        "no array 'c', which is declared",
    ]


def test_arrays_that_nobody_declared_are_a_fault() -> None:
    report = replace(make_report("c0"), arrays={"evil": np.ones(2, dtype=np.float32)})
    assert find_fault(report, np.zeros(2, dtype=np.float32), arrays={}) == (
        "array 'evil', which is not declared (declared: none)"
    )
