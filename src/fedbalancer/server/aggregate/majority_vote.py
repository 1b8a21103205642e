"""The majority vote of sign-SGD."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.types import ClientReport, ServerState, Setup, Weights
from fedbalancer.server.aggregate.mean import in_order


@dataclass(frozen=True)
class MajorityVote(Aggregator):
    """Every parameter moves by one fixed step in the direction that most clients voted for; where as many voted for
    either it stays. Every client has one vote (Bernstein et al., "signSGD with Majority Vote is Communication
    Efficient and Fault Tolerant", ICLR 2019).

    `step` None takes the task's learning rate, as the paper's update rule does. A vote there is the sign of one
    gradient; here that of the update of a whole local training.
    """

    counts_votes: ClassVar[bool] = True

    step: float | None = None

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, None]:
        step = setup.learning_rate if self.step is None else self.step
        votes = np.zeros(state.weights.shape)
        for report in in_order(reports):
            votes += np.sign(report.update)
        return (state.weights + step * np.sign(votes)).astype(np.float32), None
