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
    UNDER_WAY,
    ClientReport,
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
    UpdateFold,
)
from fedbalancer.core.types.state import RECENT_COUNTS, Ledger, ServerState, Setup
from fedbalancer.core.types.training import (
    FORWARD_PASS_EPOCHS,
    STEP_BINS,
    ClientWork,
    DivergedTraining,
    TrainOptions,
    TrainResult,
    batches_per_epoch,
    or_diverged,
    step_bin,
)

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
    "DivergedTraining",
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
    "or_diverged",
    "step_bin",
]
