"""q-FFL: fair aggregation by loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.fields import UpTo100
from fedbalancer.core.types import ClientReport, ServerState, Setup, Weights
from fedbalancer.server.aggregate.mean import sort_by_client

MIN_LOSS = 1e-10
"""Lower bound of a loss: noise may make it zero or negative, and its power infinite or complex."""


@dataclass(frozen=True)
class QFFL(Aggregator):
    """q-FedAvg: clients with a high loss count for more, so that accuracy is more even across clients.

    With L = 1 / learning rate as the estimate of the Lipschitz constant and g = L (w - w_k),

        Delta_k = F_k^q g,   h_k = q F_k^(q - 1) |g|^2 + L F_k^q,   w <- w - sum Delta_k / sum h_k.

    Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020, Algorithm 2. With q = 0 it is the unweighted
    mean.

    Difference from the paper: F_k is the mean loss that the client releases, with the summary's noise. It covers the
    trained samples, each before its first step. The paper uses the loss of all local samples before training, which
    costs a forward pass per round. FedBalancer's authors did not publish the q of their experiments.

    Args:
        q: Strength of fairness.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedbalancer+qffl").aggregate
        QFFL(q=0.01)
    """

    needs_losses: ClassVar[bool] = True

    q: UpTo100 = 0.01

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, None]:
        lipschitz = 1 / setup.learning_rate
        total, h = np.zeros(state.weights.shape), 0.0
        for report in sort_by_client(reports):
            loss = max(report.summary.loss_mean, MIN_LOSS)
            gradient = -lipschitz * report.update.astype(np.float64)
            total += loss**self.q * gradient
            h += self.q * loss ** (self.q - 1) * float(gradient @ gradient) + lipschitz * loss**self.q
        return (state.weights - total / h).astype(np.float32), None
