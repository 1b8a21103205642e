"""FedExP: a step of the server that is as long as the clients disagree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.types import ClientReport, FloatArray, ServerState, Setup, Weights
from fedbalancer.server.aggregate.mean import in_order, mean_update


def extrapolation(reports: Sequence[ClientReport], mean: FloatArray) -> float:
    """How many times its length the mean update is taken: sum p |D_i|^2 / (2 |mean|^2), with p the clients' weights, at
    least 1 and at most half the number of clients that the weights amount to.

    Clients that move the same way get 1; with n that move at right angles to each other, the mean is sqrt(n) times
    shorter than they are, and gets n / 2. Beyond that they pull against each other, and there is nothing to gain.
    """
    ordered = in_order(reports)
    shares = np.array([report.weight for report in ordered]) / sum(report.weight for report in ordered)
    squares = [float(np.dot(report.update, report.update.astype(np.float64))) for report in ordered]
    length = float(np.dot(mean, mean))
    if length == 0:
        return 1.0
    return max(1.0, min(float(shares @ squares) / (2 * length), 1 / (2 * float(shares @ shares))))


@dataclass(frozen=True)
class FedExP(Aggregator):
    """x += eta D, with D the mean update and eta its extrapolation (Jhunjhunwala, Wang and Joshi, "FedExP: Speeding Up
    Federated Averaging via Extrapolation", ICLR 2023). No parameter.

    Departures: clients count by their weights, where the paper has equal ones; the bound of half the clients is ours,
    where the paper adds a constant to the denominator; the paper hands out the mean of the last two models."""

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, None]:
        mean = mean_update(reports)
        return (state.weights + extrapolation(reports, mean) * mean).astype(np.float32), None
