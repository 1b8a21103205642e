"""q-FFL: clients with a high loss count for more, so that the model serves all alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.types import ClientReport, ServerState, Setup, Weights
from fedbalancer.server.aggregate.mean import in_order

LEAST_LOSS = 1e-10
"""A loss of nothing, or below it by noise, would make its power infinite or imaginary."""


@dataclass(frozen=True)
class QFFL(Aggregator):
    """q-FedAvg: with L = 1 / learning rate the estimate of the Lipschitz constant, and g = L (w - w_k),

        Delta_k = F_k^q g,   h_k = q F_k^(q - 1) |g|^2 + L F_k^q,   w <- w - sum Delta_k / sum h_k.

    Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020, Algorithm 2; q = 0 is the plain mean of the
    updates, every client alike. F_k is the mean loss that the client releases: that of the samples it trained, each
    before its first step, with the summary's noise. The paper takes the loss of all its data before training, which
    would cost a forward pass each round. The q of FedBalancer's experiments is not published.
    """

    needs_losses: ClassVar[bool] = True

    q: float = 0.01

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, None]:
        lipschitz = 1 / setup.learning_rate
        total, h = np.zeros(state.weights.shape), 0.0
        for report in in_order(reports):
            loss = max(report.summary.loss_mean, LEAST_LOSS)
            gradient = -lipschitz * report.update.astype(np.float64)
            total += loss**self.q * gradient
            h += self.q * loss ** (self.q - 1) * float(gradient @ gradient) + lipschitz * loss**self.q
        return (state.weights - total / h).astype(np.float32), None
