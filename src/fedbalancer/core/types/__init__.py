"""All values of the system. They are frozen; durations are in seconds; client ids are strings.

The server plans a round (`RoundPlan`), an engine runs it (`RoundResult`), and the server turns the result into its next
`ServerState`.
"""

from __future__ import annotations

from fedbalancer.core.types.layout import (
    Arrays,
    CountArray,
    FloatArray,
    IndexArray,
    Layout,
    Outside,
    Part,
    Shapes,
    Weights,
)
from fedbalancer.core.types.round import (
    FOLDED,
    FORWARD_PASS_EPOCHS,
    STEP_BINS,
    UNDER_WAY,
    ClientReport,
    ClientWork,
    Evaluation,
    FailedClient,
    FoldedUpdates,
    LateRule,
    Order,
    Release,
    RoundPlan,
    RoundResult,
    Summary,
    Timings,
    TrainOptions,
    TrainResult,
    UpdateFold,
    batches_per_epoch,
    step_bin,
)
from fedbalancer.core.types.state import RECENT_COUNTS, Ledger, ServerState, Setup

__all__ = [
    "FOLDED",
    "FORWARD_PASS_EPOCHS",
    "RECENT_COUNTS",
    "STEP_BINS",
    "UNDER_WAY",
    "Arrays",
    "ClientReport",
    "ClientWork",
    "CountArray",
    "Evaluation",
    "FailedClient",
    "FloatArray",
    "FoldedUpdates",
    "IndexArray",
    "LateRule",
    "Layout",
    "Ledger",
    "Order",
    "Outside",
    "Part",
    "Release",
    "RoundPlan",
    "RoundResult",
    "ServerState",
    "Setup",
    "Shapes",
    "Summary",
    "Timings",
    "TrainOptions",
    "TrainResult",
    "UpdateFold",
    "Weights",
    "batches_per_epoch",
    "step_bin",
]
