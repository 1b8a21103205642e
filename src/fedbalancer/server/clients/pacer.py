"""Oort's pacer, which balances round duration and utility (Lai et al., OSDI 2021, section 4.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedbalancer.core.types import ClientReport, CountArray, FloatArray, Ledger, Setup
from fedbalancer.core.types.arrays import total
from fedbalancer.server.expected import expected_s


def statistical_utility(trained: FloatArray | CountArray, count: FloatArray, sumsq: FloatArray) -> FloatArray:
    """Return |B| sqrt(mean squared loss) of each client.

    Args:
        trained: Number of trained samples, |B|.
        count: Number of losses in `sumsq`; noise may make it smaller than 1.
        sumsq: Sum of squared losses; noise may make it negative.

    Returns:
        One utility per client.
    """
    return np.asarray(trained * np.sqrt(np.maximum(sumsq, 0) / np.maximum(count, 1)))


def total_utility(reports: Sequence[ClientReport]) -> float:
    """Return U(R), the sum of the reports' statistical utilities."""
    columns = np.array([(r.summary.trained, r.summary.over_count, r.summary.over_sumsq) for r in reports], dtype=float)
    return float(statistical_utility(*columns.T).sum())


def duration_percentile_s(setup: Setup, ledger: Ledger, percentile: float) -> float:
    """Return a percentile of all clients' expected durations, computed as in Oort's released code; inf from 100 on."""
    if percentile >= 100:
        return math.inf
    durations = expected_s(setup, ledger, slice(None))
    rank = int(len(durations) * percentile / 100)
    return float(np.partition(durations, rank)[rank])


def compare_windows(utilities: tuple[float, ...], window: int) -> tuple[tuple[float, ...], bool]:
    """Compare the utility of two windows of rounds.

    Args:
        utilities: Utilities since the last comparison's older window.
        window: Rounds per window.

    Returns:
        The utilities to keep for the next comparison, and whether utility fell. Before two windows are full, it has
        not.

    Example:
        >>> compare_windows((3.0, 3.0, 2.0), 2)
        ((3.0, 3.0, 2.0), False)
        >>> compare_windows((3.0, 3.0, 2.0, 3.0), 2)
        ((2.0, 3.0), True)
    """
    if len(utilities) < 2 * window:
        return utilities, False
    before, last = utilities[:window], utilities[window:]
    return last, total(before) > total(last)
