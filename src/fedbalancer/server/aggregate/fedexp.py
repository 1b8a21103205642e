"""FedExP: extrapolated server steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.types import ClientReport, FloatArray, ServerState, Setup, Weights
from fedbalancer.server.aggregate.mean import mean_update, sort_by_client


def extrapolation_factor(reports: Sequence[ClientReport], mean: FloatArray) -> float:
    """Return FedExP's step length as a multiple of the mean update.

    The factor is sum p |D_i|^2 / (2 |mean|^2), where p are the normalised client weights. It is at least 1 and at most
    half the effective number of clients, 1 / sum p^2. Clients that agree give 1; n clients with orthogonal updates give
    n / 2.

    Args:
        reports: At least one report.
        mean: Their mean update.

    Returns:
        The factor, or 1 if the mean update is 0.
    """
    ordered = sort_by_client(reports)
    shares = np.array([report.weight for report in ordered]) / sum(report.weight for report in ordered)
    squares = [float(np.dot(report.update, report.update.astype(np.float64))) for report in ordered]
    length = float(np.dot(mean, mean))
    if length == 0:
        return 1.0
    return max(1.0, min(float(shares @ squares) / (2 * length), 1 / (2 * float(shares @ shares))))


@dataclass(frozen=True)
class FedExP(Aggregator):
    """FedExP: a longer server step where clients disagree.

    x += eta D, where D is the mean update and eta its `extrapolation_factor` (Jhunjhunwala, Wang and Joshi, "FedExP:
    Speeding Up Federated Averaging via Extrapolation", ICLR 2023). It has no parameters.

    Differences from the paper: clients count by their weights, which are equal in the paper. The upper bound is ours;
    the paper adds a constant to the denominator. The paper evaluates the mean of the last two models.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t+fedexp").aggregate
        FedExP()
    """

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, None]:
        mean = mean_update(reports)
        return (state.weights + extrapolation_factor(reports, mean) * mean).astype(np.float32), None
