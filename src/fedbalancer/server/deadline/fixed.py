"""A fixed deadline of k T."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedbalancer.core.contracts import NOTHING, DeadlinePolicy, Private
from fedbalancer.core.types import IndexArray, RoundResult, ServerState, Setup
from fedbalancer.server.expected import mean_completion_s, whole_seconds


@dataclass(frozen=True)
class FixedState:
    """The deadline, computed once."""

    deadline_s: float


@dataclass(frozen=True)
class FixedDeadline(DeadlinePolicy):
    """`multiple` times T, where T is the mean expected completion time over all training clients; cut to whole seconds
    after the multiplication. The round ends early when everybody has reported."""

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    multiple: float = 1.0

    def init(self, setup: Setup) -> FixedState:
        return FixedState(whole_seconds(self.multiple * mean_completion_s(setup)))

    def retime(self, setup: Setup, own: FixedState) -> FixedState:
        """The state with T computed again from what is known by now."""
        return self.init(setup)

    def plan(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        return state.deadline.deadline_s, len(cohort)

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> FixedState:
        own: FixedState = state.deadline
        return own
