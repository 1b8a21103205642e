"""FedNova: normalised averaging for unequal local work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.types import ClientReport, ServerState, Setup, Weights, batches_per_epoch
from fedbalancer.core.types.arrays import total
from fedbalancer.server.aggregate.mean import mean_update


def local_steps(setup: Setup, report: ClientReport) -> float:
    """Return the number of local steps behind a report: its epochs times the batches of its trained samples.

    Args:
        setup: Constants of the run.
        report: A client's report.

    Returns:
        At least 1.
    """
    per_epoch = batches_per_epoch(report.summary.trained, setup.batch_size, setup.epoch_batches)
    return float(max(report.epochs, 1.0) * max(per_epoch, 1))


@dataclass(frozen=True)
class FedNova(Aggregator):
    """FedNova: clients that take more local steps do not pull harder.

    x += (sum p t) (sum p D / t), where p are the normalised client weights and t their local steps (Wang et al.,
    "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS 2020). This is the
    normalisation for plain local SGD; it ignores a proximal term.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("prox+1t+fednova").aggregate
        FedNova()
    """

    needs_counts: ClassVar[bool] = True

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, None]:
        steps = {report.client: local_steps(setup, report) for report in reports}
        weights = total(report.weight for report in reports)
        effective = total(report.weight / weights * steps[report.client] for report in reports)
        scaled = [
            replace(report, update=report.update * np.float32(effective / steps[report.client])) for report in reports
        ]
        return (state.weights + mean_update(scaled)).astype(np.float32), None
