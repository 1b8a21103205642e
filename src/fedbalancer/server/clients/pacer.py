"""Oort's pacer: how long a round may take, against how much it achieves (Lai et al., OSDI'21, section 4.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedbalancer.core.types import ClientReport, CountArray, FloatArray, Ledger, Setup
from fedbalancer.core.types.arrays import total
from fedbalancer.server.expected import expected_s


def statistical_utility(trained: FloatArray | CountArray, count: FloatArray, sumsq: FloatArray) -> FloatArray:
    """|B| sqrt(mean squared loss): |B| samples were trained, and the squares are of those losses that the summary sums
    over. Noise may have made their sum negative, or their count less than one."""
    return np.asarray(trained * np.sqrt(np.maximum(sumsq, 0) / np.maximum(count, 1)))


def achieved(reports: Sequence[ClientReport]) -> float:
    """U(R): the statistical utility of a round, summed over its reports."""
    columns = np.array([(r.summary.trained, r.summary.over_count, r.summary.over_sumsq) for r in reports], dtype=float)
    return float(statistical_utility(*columns.T).sum())


def duration_s(setup: Setup, ledger: Ledger, percentile: float) -> float:
    """The duration that this percentile of all clients is expected to keep, as Oort's released code reads it."""
    if percentile >= 100:
        return math.inf
    durations = expected_s(setup, ledger, slice(None))
    rank = int(len(durations) * percentile / 100)
    return float(np.partition(durations, rank)[rank])


def look(utilities: tuple[float, ...], window: int) -> tuple[tuple[float, ...], bool]:
    """What the next look will compare, and whether the utility fell from one window of rounds to the next. Until two
    windows are full there is nothing to see; after a look the last one stays.

    >>> look((3.0, 3.0, 2.0), 2)
    ((3.0, 3.0, 2.0), False)
    >>> look((3.0, 3.0, 2.0, 3.0), 2)
    ((2.0, 3.0), True)
    """
    if len(utilities) < 2 * window:
        return utilities, False
    before, last = utilities[:window], utilities[window:]
    return last, total(before) > total(last)
