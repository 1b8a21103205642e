"""Adds the updates of a round one by one, so that they need not be in memory at the same time."""

from __future__ import annotations

from dataclasses import replace

from fedbalancer.core.types import FOLDED, ClientReport, UpdateFold, Weights
from fedbalancer.server.report_check import find_update_fault


class Folding:
    """Adds the updates of valid reports to a fold, and removes them from the reports.

    Args:
        fold: The fold.
        weights: The global model.
    """

    def __init__(self, fold: UpdateFold, weights: Weights) -> None:
        self.fold = fold
        self.weights: dict[str, float] = {}
        """The weight of each folded report."""
        self._model = weights

    def add(self, report: ClientReport) -> ClientReport:
        """Add a report and return it without its update; an invalid one stays as it is and will be rejected."""
        if find_update_fault(report, self._model) is not None:
            return report
        self.fold.add(report)
        self.weights[report.client] = report.weight
        return replace(report, update=FOLDED)
