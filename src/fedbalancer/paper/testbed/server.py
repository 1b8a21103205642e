"""The server of the test bed: `Strategy` on the test bed's clock, woken by the phones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
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
from fedbalancer.flower.ledger import LEAST_SHARE, TransportTimes
from fedbalancer.flower.mailbox import Mailbox, OutgoingMessage, ReceivedReply, SentMessage
from fedbalancer.flower.messages import TRAIN
from fedbalancer.flower.model_arrays import ModelLayout
from fedbalancer.flower.nodes import Nodes
from fedbalancer.flower.reading import greeting_request
from fedbalancer.flower.recorder import RunRecorder, ending_status
from fedbalancer.flower.run import Run
from fedbalancer.flower.strategy import Strategy
from fedbalancer.flower.wire import ReplyLimit
from fedbalancer.paper.testbed.client import order_name
from fedbalancer.paper.testbed.clock import SERVER, WakeupPipe, wake
from fedbalancer.paper.testbed.plan import BedPlan
from fedbalancer.training.trainer import TorchTrainer

POLL_S, PATIENCE_S, HELLO_S, AGAIN_S, LOST_S = 1.0, 600.0, 300.0, 5.0, 5.0
"""Seconds of this machine: between two polls for replies without a wake-up, until a wait times out, until a greeting
times out, until a lost greeting is repeated, and until the server checks although the clock is stopped. A late phone
stays busy until it replies."""


class BedTransportTimes(TransportTimes):
    """A phone's time budget: the deadline minus the mean of its last transfers.

    If only complete trainings count, a phone tries until the deadline, as in the paper. A phone that trains as many
    batches as fit has no slack: with the mean, half of its reports would be late. It expects the worst of its last
    transfers plus a margin, as everywhere on Flower. The test bed needs no margin for Flower's slow polling.

    Args:
        work: The method's work policy.
    """

    jitter_s = 0.0

    def __init__(self, work: WorkPolicy) -> None:
        super().__init__()
        self.work = work

    def expected_s(self, client: str) -> float:
        if isinstance(self.work, WholeBatches):
            return super().expected_s(client)
        seen = self._seen.get(client, ())
        return math.fsum(seen) / len(seen) if seen else 0.0

    def budget_s(self, client: str, round_number: int, deadline_s: float) -> float:
        if isinstance(self.work, AllOrNothing):
            return deadline_s
        return max(deadline_s - self.expected_s(client), LEAST_SHARE * deadline_s)


class BedMailbox(Mailbox):
    """A mailbox that wakes the phones to which it sends.

    The test bed's clock waits for a phone from its order until the phone has promised the time of its report, and from
    that time until the report has arrived.
    """

    def __init__(self, plan: BedPlan, grid: Grid, limit: ReplyLimit, clock: Callable[[], float]) -> None:
        super().__init__(grid, limit, clock)
        self.plan, self.bed = plan, plan.clock()

    def send(
        self, kind: str, outgoing: Sequence[OutgoingMessage], round_number: int, ttl_s: float
    ) -> list[SentMessage]:
        if kind == TRAIN:
            self.bed.hold(*(order_name(round_number, one.client) for one in outgoing))
        went = super().send(kind, outgoing, round_number, ttl_s)
        for client in {sent.client for sent in went}:
            for phone in (client,) if client else self.plan.names:  # a greeting's recipient is not known yet
                wake(self.plan.wakeups / phone)
        return went

    def poll(self, patience_s: float) -> list[ReceivedReply]:
        arrivals = super().poll(patience_s)
        self.bed.keep([SERVER, *(order_name(sent.round, sent.client) for sent in self.waiting(TRAIN))])
        return arrivals


class BedWaiting:
    """The server's sleep: until a promised phone time, or until a phone wakes it.

    While the server works, the clock is stopped.
    """

    def __init__(self, plan: BedPlan) -> None:
        self.bed, self.pipe = plan.clock(), WakeupPipe(plan.wakeups / SERVER)

    def sleep(self, seconds: float) -> None:
        due_s = self.bed.now_s() + seconds
        self.bed.promise(SERVER, due_s)
        self.bed.wait(due_s, self.pipe.wait, LOST_S)
        self.bed.hold(SERVER)


class BedNodes(Nodes):
    """Nodes with a known network time: the paper sampled its phones ten times before the experiments.

    The time of a greeting means nothing when 21 phones greet at once.
    """

    def __init__(self, network_s: Callable[[str], float], *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.network_s = network_s

    def handle_greeting(self, received: ReceivedReply) -> None:
        super().handle_greeting(received)
        for client in [client for client, node in self.node_of.items() if node == received.sent.node]:
            self.greetings[client] = replace(self.greetings[client], network_s=self.network_s(client))


class BedRun(Run):
    """A run that ends after its rounds or, with a budget, when the clock has passed the budget.

    A run below the `target` accuracy continues until it reaches it, for at most `extend` budgets.
    """

    budget_s, target, extend = math.inf, math.nan, 1.0
    accuracy = best = 0.0

    def _record_round(self, before: ServerState, result: RoundResult, first: Ledger) -> None:
        clock_s = self.state.clock_s
        if clock_s >= self.budget_s and (not self.best < self.target or clock_s >= self.extend * self.budget_s):
            self.num_rounds = self.state.round
        super()._record_round(before, result, first)
        self.best = max(self.best, self.accuracy)


def main(grid: Grid, context: Context) -> None:
    """Run one method from the app's `ServerApp`; a failure is written to a file for the parent process.

    Args:
        grid: Flower's grid.
        context: Flower's context, whose configuration names the plan and the method.
    """
    config = context.run_config
    plan, method = BedPlan.read(Path(str(config["plan"]))), str(config["method"])
    try:
        one_thread_here()
        run = prepare_run(plan, method, grid, float(config["budget"]), float(config["target"]))
        _run_recorded(run, RunRecorder(plan.run_folder(method), manifest(plan, run)))
    except BaseException as error:
        write_text(plan.failure(method), str(error) if isinstance(error, FedBalancerError) else repr(error))
        raise


def _run_recorded(run: BedRun, record: RunRecorder) -> None:
    try:
        run.run_rounds(record)
    except BaseException as error:
        record.close(*ending_status(error), run.saved, run.layout.layout)
        raise
    record.close("done", None, run.model(run.state), run.layout.layout)


def prepare_run(plan: BedPlan, method: str, grid: Grid, budget_s: float, target: float) -> BedRun:
    """Prepare the run of a method.

    Args:
        plan: The plan of the test bed.
        method: Name of the method.
        grid: Flower's grid.
        budget_s: The budget in phone seconds; 0 for none.
        target: The target accuracy; 0 for none.
    """
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
        run_key=f"{sha256(method.encode()).hexdigest()[:16]}-seed-{plan.seed}", task=plan.loaded.name,
        measure_network=False, max_failed_rounds=None,
    )  # fmt: skip

    def evaluate(round_number: int, arrays: ArrayRecord) -> MetricRecord:
        result = trainer.evaluate(layout.flat(arrays))
        run.accuracy = result.accuracy
        return MetricRecord({"accuracy": result.accuracy, "loss": result.loss})

    arrays = layout.record(weights)
    rounds = settings.rounds if not budget_s else 10**6
    run = BedRun(strategy, grid, arrays, rounds, waiting.timeout_s, None, None, evaluate)
    run.budget_s, run.target, run.extend = budget_s or math.inf, target or math.nan, plan.extend
    engine = run.engine
    engine.mailbox = BedMailbox(plan, grid, ReplyLimit.of(layout), waiting.clock)
    engine.transport = BedTransportTimes(strategy.method.client.work)
    request = greeting_request(run.key, settings.batch_size, settings.latency_samples)
    size, devices = plan.loaded.model_bytes or trainer.layout.wire_bytes, plan.devices()
    engine.nodes = BedNodes(
        lambda client: devices.expected_network_s(client, size, size), engine.mailbox, request, waiting.clock,
        engine.log_event, hello_s=HELLO_S * plan.speed, again_s=AGAIN_S * plan.speed,
    )  # fmt: skip
    return run


def manifest(plan: BedPlan, run: BedRun) -> dict[str, Any]:
    """Return the manifest of a Flower run with the fields of the test bed.

    Args:
        plan: The plan of the test bed.
        run: The run.
    """
    content = run.manifest()
    content["task"] |= {"variant": plan.loaded.variant, "scale": plan.scale, "users": plan.clients}
    finite = math.isfinite(run.budget_s)
    content |= {"rounds": None if finite else run.num_rounds, "budget_s": run.budget_s if finite else None}
    return content | {"device": "emulated", "speed": plan.speed, "phones": Path(plan.phones).name or "device model"}
