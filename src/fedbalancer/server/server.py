"""The server of one method: its policies, and how it plans and observes rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from numbers import Real
from typing import Any, cast

import numpy as np

from fedbalancer.core.contracts import (
    Aggregator,
    ClientSelector,
    DeadlinePolicy,
    LatePolicy,
    ModelAverage,
    PacePolicy,
    ThresholdPolicy,
)
from fedbalancer.core.errors import BadSetting, TrainingDiverged
from fedbalancer.core.fields import Count, check_fields
from fedbalancer.core.types import (
    ClientReport,
    FoldedUpdates,
    IndexArray,
    Order,
    RoundPlan,
    RoundResult,
    ServerState,
    Setup,
    UpdateFold,
    Weights,
)
from fedbalancer.server.aggregate import WeightedMean
from fedbalancer.server.clients import Uniform
from fedbalancer.server.deadline import WaitForShare
from fedbalancer.server.late import Lost
from fedbalancer.server.model_average import LastModel
from fedbalancer.server.pace import ConstantPace
from fedbalancer.server.report_check import CohortFaults, Suspensions, find_fault
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


OBSERVING_SLOTS = ("clients", "threshold", "pace", "deadline")
STATEFUL_SLOTS = (*OBSERVING_SLOTS, "aggregate", "model_average", "late")
RESERVE_PER_PLACE = 100
"""Largest reserve of an asynchronous step per client at work: enough if one client of a hundred is online."""


@dataclass(frozen=True)
class Server:
    """Plans rounds and computes the next state. It is pure: the same state and result give the same next state.

    Args:
        policies: One policy per server slot.
        setup: Constants of the run.
    """

    policies: ServerPolicies
    setup: Setup

    def init(self, weights: Weights) -> ServerState:
        """Return the state before the first round.

        Args:
            weights: The initial model.
        """
        slots = {slot: getattr(self.policies, slot).init(self.setup) for slot in STATEFUL_SLOTS}
        return ServerState(
            round=0, clock_s=0.0, weights=weights, ledger=self.setup.ledger, suspensions=Suspensions(), **slots
        )

    def prepare(self, state: ServerState) -> ServerState:
        """Return the state to plan the next round from; here unchanged, on Flower clients may have joined."""
        return state

    def plan(self, state: ServerState, available: IndexArray) -> RoundPlan:
        """Plan the next round: its clients, its loss threshold, and a deadline for these clients.

        Args:
            state: The current state.
            available: Ledger rows of the clients that can take part.

        Returns:
            The plan of the round.

        Raises:
            BadSetting: A custom deadline policy returned an invalid value.
        """
        available = self.policies.clients.eligible(self.setup, state, available)
        available = self.policies.late.eligible(self.setup, state, available)
        available = _suspensions(state).eligible_rows(state.ledger, available, state.round)
        cohort = self._cohort(state, available)
        deadline_s, quorum = self._deadline(state, cohort)
        quorum = self.policies.late.quorum(self.setup, state, quorum)
        clients = tuple(sorted(state.ledger.clients[row] for row in cohort))
        order = Order(
            round=state.round + 1,
            loss_threshold=self.policies.threshold.threshold(self.setup, state),
            deadline_s=deadline_s,
            epochs=self.setup.epochs,
            batch_size=self.setup.batch_size,
            seed=self.setup.seed,
            sample_cap=self.setup.sample_cap,
            epoch_batches=self.setup.epoch_batches,
            learning_rate=self.setup.rate_in(state.round + 1),
            clip_norm=self.setup.clip_norm,
            training=self.setup.training,
            arrays=self.policies.aggregate.order_arrays(self.setup, state),
            repeats=self.setup.repeats,
            shares=self._shares(state, cohort),
            rates=self.policies.aggregate.client_rates(self.setup, state, clients),
            steps=self._steps(state, cohort),
            most_steps=self.policies.late.most_steps,
        )
        bounds_s = self.policies.deadline.between(self.setup, state, cohort)
        plan = RoundPlan(order, clients, quorum, bounds_s, self.policies.late.rule())
        if plan.late != "counts":
            return plan
        plan = replace(plan, timer_s=self.policies.late.timer_s(self.setup, state))
        return self._with_reserve(plan, state, cohort) if self.policies.late.refills else plan

    def _with_reserve(self, plan: RoundPlan, state: ServerState, cohort: IndexArray) -> RoundPlan:
        """Return the plan with the clients that fill places as soon as they become free."""
        others = np.delete(np.arange(len(state.ledger.clients)), cohort)
        others = self.policies.clients.eligible(self.setup, state, others)
        candidates = _suspensions(state).eligible_rows(state.ledger, others, state.round)
        ranked = self.policies.clients.rank_reserve(self.setup, state, candidates)
        most = RESERVE_PER_PLACE * self.setup.clients_per_round
        reserve = tuple(state.ledger.clients[row] for row in ranked[:most].tolist())
        return replace(plan, concurrency=self.setup.clients_per_round, reserve=reserve)

    def _deadline(self, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        """Ask the deadline policy, and check its answer, because the policy may be a user's."""
        answer: object = self.policies.deadline.plan(self.setup, state, cohort)
        match answer:
            case (Real() as seconds, Real()) if float(seconds) >= 0:  # False for NaN
                return cast(tuple[float, int], answer)
        raise BadSetting(
            f"{type(self.policies.deadline).__name__}.plan returned {answer!r} in round {state.round + 1}; it must "
            "return the deadline in seconds and the number of reports that close the round early, such as (60.0, 5)"
        )

    def _shares(self, state: ServerState, cohort: IndexArray) -> dict[str, float]:
        """Return the share of the model that each client trains, if the deadline policy sets it."""
        shares = self.policies.deadline.part_sizes(self.setup, state, cohort)
        if shares is None:
            return {}
        clients = (state.ledger.clients[row] for row in cohort)
        return dict(zip(clients, np.asarray(shares, dtype=float).tolist(), strict=True))

    def _steps(self, state: ServerState, cohort: IndexArray) -> dict[str, int]:
        """Return the batches that each client trains, if the late policy sets them."""
        steps = self.policies.late.local_steps(self.setup, state, cohort)
        clients = (state.ledger.clients[row] for row in cohort)
        return {} if steps is None else dict(zip(clients, map(int, steps), strict=True))

    def _cohort(self, state: ServerState, available: IndexArray) -> IndexArray:
        """Select clients for the places that pending clients leave free."""
        room = self.policies.late.room(self.setup, state)
        if room <= 0:
            return np.zeros(0, dtype=np.int64)
        setup = self.setup if room == self.setup.clients_per_round else replace(self.setup, clients_per_round=room)
        return self.policies.clients.select_clients(setup, state, available)

    def observe(self, state: ServerState, result: RoundResult) -> ServerState:
        """Return the state after a round: aggregate the updates, record the reports, and update all policies.

        A round without reports keeps the model, unless the aggregator adds noise: an unchanged model would reveal that
        no client reported.

        Args:
            state: The state before the round.
            result: The round. Its reports are checked here unless it is `validated`.

        Returns:
            The next state.

        Raises:
            TrainingDiverged: A report is invalid.
        """
        for report in () if result.validated else result.reports:
            if problem := find_fault(report, state.weights):
                raise TrainingDiverged(f"client {report.client!r} in round {state.round + 1} sent {problem}")
        known = replace(state, ledger=state.ledger.record(result))
        weights, aggregate = state.weights, state.aggregate
        counted = result.reports
        if result.folded is None:
            counted = tuple(self.policies.late.combined(self.setup, known, result))
        aggregates = bool(counted) or self.policies.aggregate.model_noise_multiplier is not None
        if aggregates and result.folded is not None:
            weights, aggregate = self._finish_fold(state, result.folded, result.reports)
        elif aggregates:
            weights, aggregate = self._aggregate(known, counted)
        # Reports that joined late say nothing about how this round was planned.
        seen = result.in_time if result.plan.late == "joins" else result
        slots = {slot: getattr(self.policies, slot).observe(self.setup, known, seen) for slot in OBSERVING_SLOTS}
        slots["late"] = self.policies.late.observe(self.setup, known, result)
        clock_s = state.clock_s + result.window_s + result.seconds
        model_average = (
            self.policies.model_average.after(self.setup, state, weights) if aggregates else state.model_average
        )
        changes = {
            "weights": weights,
            "aggregate": aggregate,
            "model_average": model_average,
            "suspensions": _suspensions(state).after(result),
        }
        return replace(known, round=state.round + 1, clock_s=clock_s, **changes, **slots)

    def _aggregate(self, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, Any]:
        """Ask the aggregator, and check its answer, because the policy may be a user's."""
        answer: object = self.policies.aggregate.aggregate(self.setup, state, reports)
        match answer:
            case (np.ndarray() as weights, _) if weights.shape == state.weights.shape:
                return cast(tuple[Weights, Any], answer)
        kind = answer[0] if isinstance(answer, tuple) and len(answer) == 2 else answer
        got = f"an array of shape {kind.shape}" if isinstance(kind, np.ndarray) else type(kind).__name__
        raise BadSetting(
            f"{type(self.policies.aggregate).__name__}.aggregate returned {got} in round {state.round + 1}; it must "
            f"return the new weights, an array of shape {state.weights.shape}, and its next state"
        )

    def _finish_fold(
        self, state: ServerState, folded: FoldedUpdates, reports: tuple[ClientReport, ...]
    ) -> tuple[Weights, Any]:
        """Return the result of a fold. If a report was rejected after its update was added, fold the others again."""
        kept = {report.client: report.weight for report in reports}
        if kept == folded.weights:
            return folded.fold.finish()
        fold = self.policies.aggregate.fold(self.setup, state)
        assert fold is not None
        for report in folded.again(kept):
            fold.add(replace(report, weight=kept[report.client]))
        return fold.finish()

    def fold(self, state: ServerState, plan: RoundPlan) -> UpdateFold | None:
        """Return a fold for the updates of a round; None if a policy needs them after the round.

        Args:
            state: The state before the round.
            plan: The round, whose late reports must be lost: others are kept anyway.
        """
        from fedbalancer.core.wrapping import reactions

        readers = [getattr(self.policies, slot) for slot in (*OBSERVING_SLOTS, "late")]
        if plan.late != "lost" or any("updates" in reactions(policy) for policy in readers):
            return None
        return self.policies.aggregate.fold(self.setup, state)

    def cohort_faults(self, state: ServerState) -> CohortFaults:
        """Return the function that compares the reports of a round with each other."""
        return partial(self.policies.aggregate.cohort_faults, state)

    def model(self, state: ServerState) -> Weights:
        """Return the model to evaluate and save."""
        return self.policies.model_average.model(state)


def _suspensions(state: ServerState) -> Suspensions:
    return state.suspensions or Suspensions()
