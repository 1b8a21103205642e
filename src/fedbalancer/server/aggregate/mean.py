"""Federated averaging (FedAvg)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.types import ClientReport, FloatArray, ServerState, Setup, Weights
from fedbalancer.core.types.arrays import total as total_of

CHUNK = 2**15
"""Weights summed at a time, so that the partial sums fit into the cache. Does not change the result."""


def mean_update(reports: Sequence[ClientReport]) -> FloatArray:
    """Return the mean update, each update weighted by its report's `weight`.

    The sum uses double precision and the order of client ids, so the order of arrival does not change the bytes.

    Args:
        reports: At least one report.

    Returns:
        One value per parameter.
    """
    ordered = sort_by_client(reports)
    total = np.zeros(ordered[0].update.shape, dtype=np.float64)
    weights = total_of(report.weight for report in ordered)
    for start in range(0, len(total), CHUNK):
        piece = slice(start, start + CHUNK)
        part = total[piece]
        weighted = np.empty_like(part)
        for report in ordered:
            part += np.multiply(report.update[piece], report.weight, out=weighted, dtype=np.float64)
        part /= weights
    return total


def sort_by_client(reports: Sequence[ClientReport]) -> list[ClientReport]:
    """Return the reports in order of client id."""
    return sorted(reports, key=lambda report: report.client)


@dataclass(frozen=True)
class WeightedMean(Aggregator):
    """FedAvg: add the mean update, each client weighted by its number of trained samples.

    This is the paper's aggregation (figure 3, step 5).

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedbalancer").aggregate
        WeightedMean()
    """

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, None]:
        return (state.weights + mean_update(reports)).astype(np.float32), None
