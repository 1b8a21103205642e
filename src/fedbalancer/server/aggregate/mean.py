"""The weighted mean of FedAvg."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.sums import total as total_of
from fedbalancer.core.types import ClientReport, FloatArray, ServerState, Setup, Weights

PIECE = 2**15
"""Weights that are summed at a time, so that the sum stays in the caches; it does not matter for the result."""


def mean_update(reports: Sequence[ClientReport]) -> FloatArray:
    """The mean update, each weighted by its client's trained samples.

    Summed in double precision in order of client id: the same bytes whatever the order of arrival.
    """
    ordered = in_order(reports)
    total = np.zeros(ordered[0].update.shape, dtype=np.float64)
    weights = total_of(report.weight for report in ordered)
    for start in range(0, len(total), PIECE):
        piece = slice(start, start + PIECE)
        part = total[piece]
        weighted = np.empty_like(part)
        for report in ordered:
            part += np.multiply(report.update[piece], report.weight, out=weighted, dtype=np.float64)
        part /= weights
    return total


def in_order(reports: Sequence[ClientReport]) -> list[ClientReport]:
    """The reports in order of client id."""
    return sorted(reports, key=lambda report: report.client)


@dataclass(frozen=True)
class WeightedMean(Aggregator):
    """Weights plus the mean update of the successful clients, each weighted by its trained samples."""

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, None]:
        return (state.weights + mean_update(reports)).astype(np.float32), None
