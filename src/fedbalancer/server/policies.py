"""The server's part of a method."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from fedbalancer.core.contracts import (
    Aggregator,
    ClientSelector,
    DeadlinePolicy,
    LatePolicy,
    ModelAverage,
    PacePolicy,
    ThresholdPolicy,
)
from fedbalancer.core.fields import Count, check_fields
from fedbalancer.server.aggregate import WeightedMean
from fedbalancer.server.clients import Uniform
from fedbalancer.server.deadline import WaitForShare
from fedbalancer.server.late import Lost
from fedbalancer.server.model_average import LastModel
from fedbalancer.server.pace import ConstantPace
from fedbalancer.server.threshold import NoThreshold


@dataclass(frozen=True)
class ServerPolicies:
    """One policy per server slot. The defaults are FedAvg that waits for all clients.

    Args:
        clients: Selects the clients of a round.
        deadline: Sets the deadline and quorum of a round.
        threshold: Sets the loss threshold.
        pace: Controls the loss-threshold ratio and the deadline ratio.
        aggregate: Computes the next global model.
        model_average: Chooses the model to evaluate and save.
        late: Decides how late reports are used.
        epoch_batches: Most batches per local epoch. None: no limit.
    """

    clients: ClientSelector = field(default_factory=Uniform)
    deadline: DeadlinePolicy = field(default_factory=WaitForShare)
    threshold: ThresholdPolicy = field(default_factory=NoThreshold)
    pace: PacePolicy = field(default_factory=ConstantPace)
    aggregate: Aggregator = field(default_factory=WeightedMean)
    model_average: ModelAverage = field(default_factory=LastModel)
    late: LatePolicy = field(default_factory=Lost)
    epoch_batches: Count | None = None

    def __post_init__(self) -> None:
        """Check `epoch_batches`."""
        check_fields(self)


SERVER_SLOTS = tuple(field.name for field in fields(ServerPolicies))
