"""signSGD with majority vote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.fields import Bounds
from fedbalancer.core.types import ClientReport, ServerState, Setup, Weights
from fedbalancer.server.aggregate.mean import sort_by_client


@dataclass(frozen=True)
class MajorityVote(Aggregator):
    """signSGD's majority vote: every parameter moves by a fixed step in the direction of the majority.

    Every client has one vote per parameter. A parameter with a tie does not move (Bernstein et al., "signSGD with
    Majority Vote is Communication Efficient and Fault Tolerant", ICLR 2019).

    Difference from the paper: a vote is the sign of a whole local update, not of one gradient.

    Args:
        step: Step length. None: the task's learning rate, as in the paper's update rule.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t+signsgd").aggregate
        MajorityVote(step=None)
    """

    counts_votes: ClassVar[bool] = True

    step: Annotated[float, Bounds(gt=0)] | None = None

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, None]:
        step = setup.learning_rate if self.step is None else self.step
        votes = np.zeros(state.weights.shape)
        for report in sort_by_client(reports):
            votes += np.sign(report.update)
        return (state.weights + step * np.sign(votes)).astype(np.float32), None
