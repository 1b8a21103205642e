"""Every noun of the system, a file for each kind. All values are frozen; seconds are floats; client ids are strings.

A round flows one way: the server plans (`RoundPlan`), an engine runs it (`RoundResult`), the server observes the
result into its next `ServerState`.
"""

from __future__ import annotations

from fedbalancer.core.types.arrays import CountArray, FloatArray, IndexArray, Weights
from fedbalancer.core.types.layout import Layout
from fedbalancer.core.types.ledger import RECENT_COUNTS, Ledger
from fedbalancer.core.types.plan import LateRule, Order, RoundPlan
from fedbalancer.core.types.result import (
    UNDER_WAY,
    ClientReport,
    Evaluation,
    FailedClient,
    Release,
    RoundResult,
    Summary,
    Timings,
)
from fedbalancer.core.types.state import ServerState, Setup
from fedbalancer.core.types.work import (
    FORWARD_PASS_EPOCHS,
    STEP_BINS,
    ClientWork,
    TrainResult,
    batches_per_epoch,
    step_bin,
)

__all__ = [
    "FORWARD_PASS_EPOCHS",
    "RECENT_COUNTS",
    "STEP_BINS",
    "UNDER_WAY",
    "ClientReport",
    "ClientWork",
    "CountArray",
    "Evaluation",
    "FailedClient",
    "FloatArray",
    "IndexArray",
    "LateRule",
    "Layout",
    "Ledger",
    "Order",
    "Release",
    "RoundPlan",
    "RoundResult",
    "ServerState",
    "Setup",
    "Summary",
    "Timings",
    "TrainResult",
    "Weights",
    "batches_per_epoch",
    "step_bin",
]
