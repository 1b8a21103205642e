"""Windows by subject: how signals are cut, and that nobody trains and tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.errors import BadData
from fedbalancer.core.task import Samples
from fedbalancer.data.readers import har as har_windows

HERE = Path("folder")


def samples(count: int) -> Samples:
    return np.zeros((count, 9, 128), dtype=np.float32), np.zeros(count, dtype=np.int64)


@given(st.integers(0, 700))
def test_windows_overlap_by_half_and_leave_a_rest_out(readings: int) -> None:
    signal = np.arange(readings, dtype=np.float32)[:, None] * np.ones(9, dtype=np.float32)
    cut = har_windows.cut_windows(signal)
    assert cut.shape == (max(0, (readings - 128) // 64 + 1), 9, 128)
    assert list(cut[:, 3, 0]) == [64 * k for k in range(len(cut))]
    assert all(readings >= window[0, -1] + 1 for window in cut)


def test_subjects_are_clients_in_order_of_their_numbers() -> None:
    made = har_windows.pack_subjects({11: samples(2), 3: samples(4)}, {2: samples(1)}, HERE)
    assert made.meta["names"] == ["s03", "s11"]
    assert made.meta["lengths"] == [4, 2]
    assert made.meta["test_names"] == ["s02"]
    assert made.arrays["x"].shape == (6, 9, 128)


def test_nobody_is_in_training_and_test() -> None:
    with pytest.raises(BadData, match="folder: subject 3 is in both train and test"):
        har_windows.pack_subjects({3: samples(4), 5: samples(1)}, {3: samples(1)}, HERE)


def test_there_must_be_somebody_on_either_side() -> None:
    with pytest.raises(BadData, match="folder has no train subjects"):
        har_windows.pack_subjects({}, {3: samples(1)}, HERE)
    with pytest.raises(BadData, match="folder has no test subjects"):
        har_windows.pack_subjects({3: samples(1)}, {}, HERE)
