"""The server of a bed: `Strategy` on the clock of the bed, woken by its phones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedbalancer.client.work import AllOrNothing, WholeBatches
from fedbalancer.core.contracts import WorkPolicy
from fedbalancer.core.errors import FedBalancerError
from fedbalancer.core.files import write_text
from fedbalancer.core.processes import one_thread_here
from fedbalancer.core.types import Ledger, RoundResult, ServerState
from fedbalancer.flower.compat import ArrayRecord, Context, Grid, MetricRecord
from fedbalancer.flower.grid_engine import Waiting
from fedbalancer.flower.ledger import LEAST_SHARE, Overheads
from fedbalancer.flower.mailbox import Arrival, Letter, Mailbox, Sent
from fedbalancer.flower.messages import TRAIN, ModelLayout
from fedbalancer.flower.nodes import Nodes
from fedbalancer.flower.reading import question
from fedbalancer.flower.recorder import RunRecorder, ending
from fedbalancer.flower.run import Run
from fedbalancer.flower.strategy import Strategy
from fedbalancer.flower.wire import ReplyLimit
from fedbalancer.paper.testbed.client import order_name
from fedbalancer.paper.testbed.plan import BedPlan
from fedbalancer.paper.testbed.wakeups import SERVER, WakeupPipe, wake
from fedbalancer.training.trainer import TorchTrainer

POLL_S, PATIENCE_S, HELLO_S, AGAIN_S, LOST_S = 1.0, 600.0, 300.0, 5.0, 5.0
"""Seconds of this machine: how often replies are asked for if nobody wakes us, how long anything is waited for, how
long a greeting, and when one that was lost is asked for again; and when to look although the clock stands still. A
phone that is late stays busy until it answers."""


class BedOverheads(Overheads):
    """What a phone may take: the deadline less the mean of its last ways. Where only whole trainings count, a phone
    tries until the deadline, as the paper's did: to give up early cannot win it the round. One that trains as many
    batches as fit has no slack of its own, so that by the mean half of its reports would be late: it expects the worst
    of its last ways and some more, as on Flower everywhere. There is nothing to add for Flower's slow polling, which
    the bed does not have."""

    jitter_s = 0.0

    def __init__(self, work: WorkPolicy) -> None:
        super().__init__()
        self.work = work

    def expected_s(self, client: str) -> float:
        if isinstance(self.work, WholeBatches):
            return super().expected_s(client)
        seen = self._seen.get(client, ())
        return math.fsum(seen) / len(seen) if seen else 0.0

    def budget_s(self, client: str, round: int, deadline_s: float) -> float:
        if isinstance(self.work, AllOrNothing):
            return deadline_s
        return max(deadline_s - self.expected_s(client), LEAST_SHARE * deadline_s)


class BedMailbox(Mailbox):
    """A mailbox that wakes the phones that it has sent something to. The clock of the bed waits for a phone from its
    order until it has promised when its report comes, and from then until the report is here."""

    def __init__(self, plan: BedPlan, grid: Grid, limit: ReplyLimit, clock: Callable[[], float]) -> None:
        super().__init__(grid, limit, clock)
        self.plan, self.bed = plan, plan.clock()

    def send(self, kind: str, letters: Sequence[Letter], round: int, ttl_s: float) -> list[Sent]:
        if kind == TRAIN:
            self.bed.hold(*(order_name(round, letter.client) for letter in letters))
        went = super().send(kind, letters, round, ttl_s)
        for client in {sent.client for sent in went}:
            for phone in (client,) if client else self.plan.names:  # of a greeting we do not know yet whom it finds
                wake(self.plan.wakeups / phone)
        return went

    def poll(self, patience_s: float) -> list[Arrival]:
        arrivals = super().poll(patience_s)
        self.bed.keep([SERVER, *(order_name(sent.round, sent.client) for sent in self.waiting(TRAIN))])
        return arrivals


class BedWaiting:
    """How the server waits: until the phone time that it has promised to be back at, or until a phone wakes it. While
    it does not wait it works, and the clock stands still."""

    def __init__(self, plan: BedPlan) -> None:
        self.bed, self.pipe = plan.clock(), WakeupPipe(plan.wakeups / SERVER)

    def sleep(self, seconds: float) -> None:
        due_s = self.bed.now_s() + seconds
        self.bed.promise(SERVER, due_s)
        self.bed.wait(due_s, self.pipe.wait, LOST_S)
        self.bed.hold(SERVER)


class BedNodes(Nodes):
    """Nodes whose network was measured before: the paper sampled its phones ten times before the experiments. What a
    greeting takes among 21 at once says nothing."""

    def __init__(self, network_s: Callable[[str], float], *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.network_s = network_s

    def take(self, arrival: Arrival) -> None:
        super().take(arrival)
        for client in [client for client, node in self.node_of.items() if node == arrival.sent.node]:
            self.greetings[client] = replace(self.greetings[client], network_s=self.network_s(client))


class BedRun(Run):
    """A run that ends after its rounds or, where the bed has a budget, when the clock has passed that. One that is not
    yet at the `target` accuracy by then goes on until it is, for at most `extend` budgets."""

    budget_s, target, extend = math.inf, math.nan, 1.0
    accuracy = best = 0.0

    def _keep(self, before: ServerState, result: RoundResult, first: Ledger) -> None:
        clock_s = self.state.clock_s
        if clock_s >= self.budget_s and (not self.best < self.target or clock_s >= self.extend * self.budget_s):
            self.num_rounds = self.state.round
        super()._keep(before, result, first)
        self.best = max(self.best, self.accuracy)


def main(grid: Grid, context: Context) -> None:
    """One method on the bed, from the app's `ServerApp`. Whoever started the bed is told why it failed by a file."""
    config = context.run_config
    plan, method = BedPlan.read(Path(str(config["plan"]))), str(config["method"])
    try:
        one_thread_here()
        run = prepared(plan, method, grid, float(config["budget"]), float(config["target"]))
        _recorded(run, RunRecorder(plan.run_folder(method), manifest(plan, run)))
    except BaseException as error:
        write_text(plan.failure(method), str(error) if isinstance(error, FedBalancerError) else repr(error))
        raise


def _recorded(run: BedRun, record: RunRecorder) -> None:
    try:
        run.go(record)
    except BaseException as error:
        record.close(*ending(error), run.saved, run.layout.layout)
        raise
    record.close("done", None, run.model(run.state), run.layout.layout)


def prepared(plan: BedPlan, method: str, grid: Grid, budget_s: float, target: float) -> BedRun:
    """The run of a method; a budget or target of 0 is none."""
    settings, trainer = plan.settings(method), TorchTrainer(plan.loaded)
    weights = trainer.initial_weights(plan.seed)
    layout = ModelLayout(trainer.layout, {name: weights.dtype for name, _ in trainer.layout}, {})
    bed = BedWaiting(plan)
    waiting = Waiting(
        poll_s=POLL_S * plan.speed, timeout_s=PATIENCE_S * plan.speed, grace_s=PATIENCE_S * plan.speed,
        clock=bed.bed.now_s, sleep=bed.sleep,
    )  # fmt: skip
    strategy = Strategy(
        method, clients_per_round=settings.clients_per_round, epochs=settings.epochs, batch_size=settings.batch_size,
        learning_rate=settings.learning_rate, eval_every=settings.eval_every,
        settings=settings.model_dump(exclude_defaults=True), seed=plan.seed, min_clients=plan.clients, waiting=waiting,
        run_key=f"{method} seed {plan.seed}", task=plan.loaded.name, measure_network=False,
        max_failed_rounds=None,
    )  # fmt: skip

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
        found = trainer.evaluate(layout.flat(arrays))
        run.accuracy = found.accuracy
        return MetricRecord({"accuracy": found.accuracy, "loss": found.loss})

    arrays = layout.record(weights)
    rounds = settings.rounds if not budget_s else 10**6
    run = BedRun(strategy, grid, arrays, rounds, waiting.timeout_s, None, None, evaluate)
    run.budget_s, run.target, run.extend = budget_s or math.inf, target or math.nan, plan.extend
    engine = run.engine
    engine.mailbox = BedMailbox(plan, grid, ReplyLimit.of(layout), waiting.clock)
    engine.overheads = BedOverheads(strategy.method.client.work)
    asked = question(run.key, settings.batch_size, settings.latency_samples)
    size, devices = plan.loaded.model_bytes or trainer.layout.wire_bytes, plan.devices()
    engine.nodes = BedNodes(
        lambda client: devices.expected_network_s(client, size, size), engine.mailbox, asked, waiting.clock,
        engine.say, hello_s=HELLO_S * plan.speed, again_s=AGAIN_S * plan.speed,
    )  # fmt: skip
    return run


def manifest(plan: BedPlan, run: BedRun) -> dict[str, Any]:
    """The manifest of a run on Flower, and what is the bed's."""
    content = run.manifest()
    content["task"] |= {"variant": plan.loaded.variant, "scale": plan.scale, "users": plan.clients}
    finite = math.isfinite(run.budget_s)
    content |= {"rounds": None if finite else run.num_rounds, "budget_s": run.budget_s if finite else None}
    return content | {"device": "emulated", "speed": plan.speed, "phones": Path(plan.phones).name or "device model"}
