"""How far attackers steer a method: its loss threshold, its deadline, its choice of clients and its model.

Two runs with and without liars differ by luck as well: other clients are chosen, others miss the deadline. So beside
the server of a run goes a second one that hears, of the very same rounds, the truth of all whose reports were believed;
what the two would say next is compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedbalancer.attacks import Attackers, poisons
from fedbalancer.protocols import Executor
from fedbalancer.runs.executor_cache import ExecutorCache
from fedbalancer.runs.simulation import Simulation, build
from fedbalancer.runs.spec import RunSpec
from fedbalancer.server.report_check import believed
from fedbalancer.task import Task
from fedbalancer.types import ClientReport, Order, RoundPlan, RoundResult, ServerState

LAST = 5
"""Rounds at the end of a run over which accuracy is averaged: single ones jump."""


@dataclass(frozen=True)
class Steered:
    """What attackers achieved: by how much, at most, the loss threshold was off and the deadline (as a share); the
    share of chosen honest clients that completed; the share of rounds in which the most chosen attacker was chosen; the
    reports that were left out, of attackers and of honest clients; and the accuracy over the last rounds."""

    threshold: float
    deadline: float
    honest: float
    chosen: float
    left_out: int
    wronged: int
    accuracy: float


class _Listening(Attackers):
    """Attackers whose true reports can be heard."""

    def __init__(self, attackers: Attackers | None) -> None:
        super().__init__({} if attackers is None else attackers.attack_of)
        self.truth: list[ClientReport] = []

    def falsified(self, report: ClientReport, order: Order) -> ClientReport:
        self.truth.append(report)
        return super().falsified(report, order)


class _Tally:
    """What is counted from round to round."""

    def __init__(self, attackers: Attackers) -> None:
        self.attackers = set(attackers.attack_of)
        self.threshold, self.deadline = 0.0, 0.0
        self.chosen: Counter[str] = Counter()
        self.honest_asked = self.honest_done = self.left_out = self.wronged = 0
        self.accuracies: list[float] = []

    def compare(self, plan: RoundPlan, honest: Order) -> None:
        """What a round's plan is, and what it would be if nobody had lied so far."""
        self.threshold = max(self.threshold, abs(plan.order.loss_threshold - honest.loss_threshold))
        if honest.deadline_s < float("inf"):
            self.deadline = max(self.deadline, abs(plan.order.deadline_s / honest.deadline_s - 1))

    def note(self, result: RoundResult) -> None:
        """What became of a round."""
        self.chosen.update(set(result.plan.cohort) & self.attackers)
        self.honest_asked += len(set(result.plan.cohort) - self.attackers)
        self.honest_done += len({report.client for report in result.reports} - self.attackers)
        out = [missing.client for missing in result.missing if missing.problem]
        self.left_out += len(out)
        self.wronged += len(set(out) - self.attackers)

    def result(self, rounds: int) -> Steered:
        """All of it."""
        chosen = max(self.chosen.values(), default=0) / rounds
        honest = self.honest_done / max(self.honest_asked, 1)
        accuracy = sum(self.accuracies) / max(len(self.accuracies), 1)
        return Steered(self.threshold, self.deadline, honest, chosen, self.left_out, self.wronged, accuracy)


def steered(spec: RunSpec, task: Task, executor: Executor, attacks: Sequence[str] = ()) -> Steered:
    """Run a spec under attack, for its `rounds`."""
    settings = {**spec.overrides, "attacks": tuple(attacks)}
    attacked = replace(spec, settings=settings)
    if poisons(tuple(attacks)):  # whoever trains must have these clients' data
        executor = ExecutorCache().executor(attacked, task)
    simulation = build(attacked, task, executor)
    server, engine = simulation.server, simulation.engine
    engine.attackers = listening = _Listening(engine.attackers)
    tally = _Tally(listening)
    state = told_the_truth = server.init(executor.initial_weights(spec.seed))
    rounds = spec.rounds if spec.rounds is not None else simulation.settings.rounds
    for number in range(rounds):
        plan = server.plan(state, engine.available(state.clock_s))
        honest = _planned(simulation, told_the_truth, plan)
        tally.compare(plan, honest.order)
        listening.truth = []
        told = engine.run(plan, state.weights, state.clock_s)
        result = believed(told, state, server.setup, server.cohort_faults(state))
        told_the_truth = server.observe(told_the_truth, _truth(result, honest, listening.truth))
        state = server.observe(state, result)
        tally.note(result)
        if number >= rounds - LAST and not spec.timing_only:
            tally.accuracies.append(executor.evaluate(server.model(state)).accuracy)
    return tally.result(rounds)


def _truth(result: RoundResult, plan: RoundPlan, truth: Sequence[ClientReport]) -> RoundResult:
    """The round as it was, but that all who were believed told the truth."""
    believed_ones = {report.client for report in result.reports}
    return replace(result, plan=plan, reports=tuple(report for report in truth if report.client in believed_ones))


def _planned(simulation: Simulation, state: ServerState, plan: RoundPlan) -> RoundPlan:
    """The plan for the same clients, as a server in this state would make it."""
    server, rows = simulation.server, state.ledger.rows(plan.cohort)
    deadline_s, _ = server.policies.deadline.plan(server.setup, state, rows)
    threshold = server.policies.threshold.threshold(server.setup, state)
    return replace(plan, order=replace(plan.order, deadline_s=deadline_s, loss_threshold=threshold))
