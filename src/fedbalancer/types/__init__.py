"""Every noun of the system, a file for each kind. All values are frozen; seconds are floats; client ids are strings.

A round flows one way: the server plans (`RoundPlan`), an engine runs it (`RoundResult`), the server observes the
result into its next `ServerState`.
"""

from __future__ import annotations

from fedbalancer.types.arrays import CountArray, FloatArray, IndexArray, Weights
from fedbalancer.types.layout import Layout
from fedbalancer.types.ledger import RECENT_COUNTS, Ledger
from fedbalancer.types.plan import LateRule, Order, RoundPlan
from fedbalancer.types.result import UNDER_WAY, ClientReport, Evaluation, Missing, RoundResult, Summary, Timings
from fedbalancer.types.state import ServerState, Setup
from fedbalancer.types.work import FORWARD_PASS_EPOCHS, STEP_BINS, ClientWork, Trained, batches_per_epoch, step_bin

__all__ = [
    "FORWARD_PASS_EPOCHS",
    "RECENT_COUNTS",
    "STEP_BINS",
    "UNDER_WAY",
    "ClientReport",
    "ClientWork",
    "CountArray",
    "Evaluation",
    "FloatArray",
    "IndexArray",
    "LateRule",
    "Layout",
    "Ledger",
    "Missing",
    "Order",
    "RoundPlan",
    "RoundResult",
    "ServerState",
    "Setup",
    "Summary",
    "Timings",
    "Trained",
    "Weights",
    "batches_per_epoch",
    "step_bin",
]
