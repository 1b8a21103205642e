"""What the server runs of a method."""

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
from fedbalancer.server.aggregate import WeightedMean
from fedbalancer.server.clients import Uniform
from fedbalancer.server.deadline import WaitForShare
from fedbalancer.server.late import Lost
from fedbalancer.server.model_average import LastModel
from fedbalancer.server.pace import ConstantPace
from fedbalancer.server.threshold import NoThreshold


@dataclass(frozen=True)
class ServerPolicies:
    """One choice per slot of the server, and after how many batches it cuts every local epoch short (None: never). The
    defaults are FedAvg that waits for all."""

    clients: ClientSelector = field(default_factory=Uniform)
    deadline: DeadlinePolicy = field(default_factory=WaitForShare)
    threshold: ThresholdPolicy = field(default_factory=NoThreshold)
    pace: PacePolicy = field(default_factory=ConstantPace)
    aggregate: Aggregator = field(default_factory=WeightedMean)
    model_average: ModelAverage = field(default_factory=LastModel)
    late: LatePolicy = field(default_factory=Lost)
    epoch_batches: int | None = None


SERVER_SLOTS = tuple(field.name for field in fields(ServerPolicies))
