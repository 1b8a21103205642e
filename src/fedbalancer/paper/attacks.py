"""Measure how far attackers influence a method: its loss threshold, deadline, client selection and model.

Two runs with and without attackers also differ by chance: other clients are selected, others miss the deadline. A
second server therefore observes the same rounds with the true reports of all clients whose reports were accepted, and
the plans of the two servers are compared.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedbalancer.core.interfaces import Executor
from fedbalancer.core.types import ClientReport, Order, RoundPlan, RoundResult, ServerState, Weights
from fedbalancer.core.types.round import total
from fedbalancer.data import Task
from fedbalancer.experiments.executor_cache import ExecutorCache
from fedbalancer.experiments.simulation import Simulation, build
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.server.deadline.limited import LimitedState
from fedbalancer.server.report_check import drop_invalid_reports
from fedbalancer.simulation.attacks import Attackers, poisons_data

LAST = 5
"""Number of rounds at the end of a run over which accuracy is averaged, because it varies between rounds."""


@dataclass(frozen=True)
class Influence:
    """The influence of attackers on a run.

    Args:
        threshold: Largest error of the loss threshold.
        deadline: Largest relative error of the deadline.
        honest: Share of the selected honest clients that completed.
        selected: Share of rounds in which the most selected attacker was selected.
        rejected: Number of rejected reports.
        wrongly_rejected: Number of rejected reports of honest clients.
        accuracy: Mean accuracy over the last rounds.
        victims: The same on the samples that a targeted attack tries to spoil; NaN for other attacks.
    """

    threshold: float
    deadline: float
    honest: float
    selected: float
    rejected: int
    wrongly_rejected: int
    accuracy: float
    victims: float = math.nan


class _RecordedAttackers(Attackers):
    """Attackers whose true reports are recorded."""

    def __init__(self, attackers: Attackers | None) -> None:
        super().__init__({} if attackers is None else attackers.attack_of)
        self.truth: list[ClientReport] = []

    def falsify(self, reports: Sequence[ClientReport], order: Order, weights: Weights) -> list[ClientReport]:
        self.truth = list(reports)
        return super().falsify(reports, order, weights)


class _Counts:
    """Counts over rounds."""

    def __init__(self, attackers: Attackers) -> None:
        self.attackers = set(attackers.attack_of)
        self.threshold, self.deadline = 0.0, 0.0
        self.selected: Counter[str] = Counter()
        self.honest_selected = self.honest_done = self.rejected = self.wrongly_rejected = 0
        self.accuracies: list[tuple[float, float]] = []

    def compare(self, plan: RoundPlan, honest: Order) -> None:
        """Compare the plan of a round with the plan that true reports would have given."""
        self.threshold = max(self.threshold, abs(plan.order.loss_threshold - honest.loss_threshold))
        if honest.deadline_s < float("inf"):
            self.deadline = max(self.deadline, abs(plan.order.deadline_s / honest.deadline_s - 1))

    def add(self, result: RoundResult) -> None:
        """Count the outcome of a round."""
        self.selected.update(set(result.plan.cohort) & self.attackers)
        self.honest_selected += len(set(result.plan.cohort) - self.attackers)
        self.honest_done += len({report.client for report in result.reports} - self.attackers)
        rejected = [missing.client for missing in result.missing if missing.problem]
        self.rejected += len(rejected)
        self.wrongly_rejected += len(set(rejected) - self.attackers)

    def summarize(self, rounds: int) -> Influence:
        selected = max(self.selected.values(), default=0) / rounds
        honest = self.honest_done / max(self.honest_selected, 1)
        last = self.accuracies[-LAST:] or [(0.0, math.nan)]
        accuracy, victims = (total(values) / len(last) for values in zip(*last, strict=True))
        return Influence(
            self.threshold, self.deadline, honest, selected, self.rejected, self.wrongly_rejected, accuracy, victims
        )


def measure_influence(spec: RunSpec, task: Task, executor: Executor, attacks: Sequence[str] = ()) -> Influence:
    """Run a specification under attack, for its `rounds`.

    Args:
        spec: The run.
        task: Its task.
        executor: Executor for training, unless an attack changes the clients' data.
        attacks: Attacks as in `run --attack`.
    """
    return measure_influences(spec, task, executor, attacks)[-1]


def measure_influences(
    spec: RunSpec,
    task: Task,
    executor: Executor,
    attacks: Sequence[str] = (),
    after: Sequence[int] = (),
    victims: Executor | None = None,
) -> list[Influence]:
    """Run a specification under attack, and measure the influence after some numbers of rounds.

    Args:
        spec: The run.
        task: Its task.
        executor: Executor for training, unless an attack changes the clients' data.
        attacks: Attacks as in `run --attack`.
        after: Numbers of rounds, ascending. Default: the rounds of the run.
        victims: Evaluates models on the samples that a targeted attack tries to spoil.

    Returns:
        The influence up to each of these rounds.
    """
    settings = {**spec.overrides, "attacks": tuple(attacks)}
    attacked = replace(spec, settings=settings)
    if poisons_data(tuple(attacks)):  # the executor needs the changed data
        executor = ExecutorCache().executor(attacked, task)
    simulation = build(attacked, task, executor)
    server, engine = simulation.server, simulation.engine
    engine.attackers = attackers = _RecordedAttackers(engine.attackers)
    counts = _Counts(attackers)
    state = honest_state = server.init(executor.initial_weights(spec.seed))
    ends = list(after) or [spec.rounds if spec.rounds is not None else simulation.settings.rounds]
    influences = []
    for number in range(1, ends[-1] + 1):
        plan = server.plan(state, engine.available(state.clock_s))
        honest_plan = _replan(simulation, honest_state, plan)
        counts.compare(plan, honest_plan.order)
        attackers.truth = []
        raw_result = engine.run(plan, state.weights, state.clock_s)
        result = drop_invalid_reports(raw_result, state, server.setup, server.cohort_faults(state))
        true_state = server.observe(honest_state, _replace_reports(result, attackers.truth))
        honest_state = _keep_own_deadline(true_state, honest_plan)
        state = server.observe(state, result)
        counts.add(result)
        if not spec.timing_only and any(end - LAST < number <= end for end in ends):
            model = server.model(state)
            on_victims = math.nan if victims is None else victims.evaluate(model).accuracy
            counts.accuracies.append((executor.evaluate(model).accuracy, on_victims))
        if number in ends:
            influences.append(counts.summarize(number))
    return influences


def _replace_reports(result: RoundResult, truth: Sequence[ClientReport]) -> RoundResult:
    """Return the round with the true reports of all clients whose reports were accepted.

    The plan stays the one that the clients worked with. Otherwise the second server would take the seconds of two
    epochs for those of three where its own deadline is a little longer.
    """
    accepted = {report.client for report in result.reports}
    return replace(result, reports=tuple(report for report in truth if report.client in accepted))


def _keep_own_deadline(state: ServerState, plan: RoundPlan) -> ServerState:
    """Return the second server's state with its own last deadline, which limits its next one."""
    own = state.deadline
    if not isinstance(own, LimitedState) or own.last_s is None:
        return state
    return replace(state, deadline=replace(own, last_s=plan.order.deadline_s))


def _replan(simulation: Simulation, state: ServerState, plan: RoundPlan) -> RoundPlan:
    """Return the plan that a server in this state makes for the same clients."""
    server, rows = simulation.server, state.ledger.rows(plan.cohort)
    deadline_s, _ = server.policies.deadline.plan(server.setup, state, rows)
    threshold = server.policies.threshold.threshold(server.setup, state)
    return replace(plan, order=replace(plan.order, deadline_s=deadline_s, loss_threshold=threshold))
