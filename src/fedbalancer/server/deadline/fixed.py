"""A fixed deadline of k T."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedbalancer.core.contracts import NOTHING, DeadlinePolicy, Private
from fedbalancer.core.fields import Step
from fedbalancer.core.types import IndexArray, RoundResult, ServerState, Setup
from fedbalancer.server.expected import mean_completion_s, whole_seconds


@dataclass(frozen=True)
class FixedState:
    """State of `FixedDeadline`.

    Args:
        deadline_s: The deadline in seconds.
    """

    deadline_s: float


@dataclass(frozen=True)
class FixedDeadline(DeadlinePolicy):
    """A constant deadline of `multiple` times T (the paper's 1T and 2T).

    T is the mean expected completion time over all training clients. The product is truncated to whole seconds. A round
    ends early when all clients have reported.

    Args:
        multiple: Factor of T.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg[deadline=.5T]").deadline
        FixedDeadline(multiple=0.5)
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    multiple: Step = 1.0

    def init(self, setup: Setup) -> FixedState:
        return FixedState(whole_seconds(self.multiple * mean_completion_s(setup)))

    def retime(self, setup: Setup, own: FixedState) -> FixedState:
        """Return the state with T computed again from the current ledger."""
        return self.init(setup)

    def plan(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        return state.deadline.deadline_s, len(cohort)

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> FixedState:
        own: FixedState = state.deadline
        return own
