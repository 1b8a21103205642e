"""The rounds of one run, with evaluation, recording and checkpoints between them."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeAlias

from fedbalancer.client.policies import ClientPolicies
from fedbalancer.client.round import ClientMemory, ClientRound
from fedbalancer.client.training import start_model
from fedbalancer.core.errors import TrainingDiverged
from fedbalancer.core.metrics import ACCURACY, Metric
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import DivergedTraining, Evaluation, Order, RoundResult, ServerState, Weights
from fedbalancer.core.types.round import total
from fedbalancer.experiments.progress import Progress
from fedbalancer.experiments.simulation import Simulation, first_order
from fedbalancer.reporting.rule import CLOCK_SLACK, HELD
from fedbalancer.server.loop import rounds as run_rounds
from fedbalancer.simulation.engine import SimulatedEngine
from fedbalancer.store import ClassRow, ClientRow, EvalRow, MemoryRecorder, PopulationRow, RoundRow, RunFolder
from fedbalancer.store.rows import SECONDS, ClientSpread
from fedbalancer.store.tracking import Sink

if TYPE_CHECKING:
    import polars as pl


_log = logging.getLogger("fedbalancer")

Recorder: TypeAlias = RunFolder | MemoryRecorder
Stopped: TypeAlias = Callable[[], bool | str]
"""Called after every round; if it returns True or a reason, the run saves its state and stops."""
INTERRUPTED = "interrupted"
"""Why a run stops, if `stopped` gives no reason."""
TABLES_EVERY_S = 10.0
"""Seconds between updates of the tables on disk during a run."""


class RunLoop:
    """Runs the rounds of a simulation, starting after the last round that `recorder` has saved.

    Args:
        simulation: Server, engine and executor of the run.
        recorder: Stores the tables and checkpoints.
        sink: Receives every round and evaluation.
        progress: Called after every round.
    """

    def __init__(
        self, simulation: Simulation, recorder: Recorder, sink: Sink, progress: Callable[[Progress], None]
    ) -> None:
        self.simulation, self.spec = simulation, simulation.spec
        self.recorder, self.sink, self.progress = recorder, sink, progress
        self.rounds = self.spec.rounds if self.spec.rounds is not None else simulation.settings.rounds
        self.metric = self.spec.metric(simulation.task)
        self.value: float | None = None
        self.stop_reason: str | None = None
        self.start_s = 0.0
        self.reached = ReachedValue(simulation.settings.eval_every_s is not None, self.metric)
        self.evaluated: tuple[Weights, Evaluation, ClientSpread | None] | None = None
        tested = tuple(sorted(simulation.task.client_tests))
        self.tested = _draw_clients(tested, simulation.settings.eval_clients, self.spec.seed)
        self.saved_at = self.tables_at = time.monotonic()
        self.state = simulation.server.init(simulation.executor.initial_weights(self.spec.seed))
        restored = recorder.restore(self.state)
        if restored is not None:
            self.state, memory, arrays = restored
            simulation.engine.restore(arrays)
            if not simulation.engine.saves_losses and not simulation.method.client.forward_pass_every_round:
                recorder.log(
                    "exact losses were not saved", why="the run is private, so clients repeat their forward passes and "
                    "the results may differ from those of an uninterrupted run (save_exact_losses=true)",
                )  # fmt: skip
            self.value = memory.get("value", memory.get("accuracy"))  # its name in an earlier version
            self._restore_evaluations(recorder.frames())
        elif not self.spec.timing_only:
            self._record(None, self._first_evals(), [])

    def run(self, stopped: Stopped) -> bool:
        """Run all remaining rounds.

        Args:
            stopped: Called after every round; if it returns True or a reason, the run saves its state and stops.

        Returns:
            Whether the run reached its end.
        """
        before = self.state
        if self._is_stopped(stopped):
            return self.is_over(before)
        self.progress(self._progress())
        for state, result in run_rounds(self.simulation.server, self.simulation.engine, self.state, self.is_over):
            self.state = state
            evals = [] if self.spec.timing_only else self._evals(before)
            row = RoundRow.from_round(before, state, result, self.simulation.engine.seen_losses)
            self._record(row, evals, ClientRow.from_round(result))
            self._log_rejected_reports(result)
            before = state
            self.progress(self._progress())
            is_stopped = self._is_stopped(stopped)
            self._save(force=is_stopped)
            if is_stopped:
                break
        self._save(force=True)
        over = self.is_over(self.state)
        if over and not self.spec.timing_only and not self.recorder.has_population:
            self.recorder.record_classes(class_rows(self.simulation, self.state))
            self.recorder.record_population(population_rows(self.simulation, self.state))
        return over

    def _is_stopped(self, stopped: Stopped) -> bool:
        """Ask whether the run has to stop, and keep the reason."""
        answer = stopped()
        self.stop_reason = (answer if isinstance(answer, str) else INTERRUPTED) if answer else None
        return bool(answer)

    def is_over(self, state: ServerState, with_target: bool = True) -> bool:
        """Return whether the budget, the rounds or the target is reached.

        Args:
            state: The state of the server.
            with_target: Whether reaching the target ends the run.
        """
        spec = self.spec
        if (with_target and self.is_at_target) or self.is_spent:
            return True
        return state.clock_s >= spec.budget_s if spec.budget_s is not None else state.round >= self.rounds

    @property
    def is_at_target(self) -> bool:
        """Whether the run has a target and has reached it."""
        return self.spec.target is not None and self.reached.is_at(self.spec.target)

    @property
    def is_spent(self) -> bool:
        """Whether every client has used up its privacy budget."""
        spending = self.simulation.engine.spending
        return spending is not None and spending.is_over(self.state.ledger.clients)

    def _first_evals(self) -> list[EvalRow]:
        """Return the evaluations before the first round."""
        at_s = [None] if self.simulation.settings.eval_every_s is None else [None, 0.0]
        return [self._eval_row(self.state, 0.0, each) for each in at_s]

    def _evals(self, before: ServerState) -> list[EvalRow]:
        """Return the evaluations of the round that starts from `before`.

        Grid times within the round use the model from before it; a grid time at its very end uses the new model.
        """
        settings, now = self.simulation.settings, self.state
        step_s = settings.eval_every_s
        times_s = [] if step_s is None else grid_times(step_s, before.clock_s, now.clock_s)
        within = [at_s for at_s in times_s if not is_at(at_s, now.clock_s)]
        rows = [self._eval_row(before, self.start_s, at_s) for at_s in within]
        self.start_s = before.clock_s
        at_end: list[float | None] = [*times_s[len(within) :]]
        if now.round % settings.eval_every == 0 or self.is_over(now, with_target=False):
            at_end.insert(0, None)
        return rows + [self._eval_row(now, self.start_s, at_s) for at_s in at_end]

    def _eval_row(self, state: ServerState, start_s: float, at_s: float | None) -> EvalRow:
        """Evaluate the model of a state. A model that did not change, as after a lost round, is evaluated once."""
        if self.evaluated is None or self.evaluated[0] is not state.weights:
            model = self.simulation.server.model(state)
            evaluation = self.simulation.engine.evaluate(model)
            _check_finite(evaluation, state.round)
            self.evaluated = state.weights, evaluation, self._evaluate_clients(model)
        _, evaluation, clients = self.evaluated
        return EvalRow.from_evaluation(state, start_s, evaluation, at_s, clients)

    def _evaluate_clients(self, model: Weights) -> ClientSpread | None:
        """Evaluate a model on the clients' own test data; None if there are none."""
        if not self.tested:
            return None
        order = first_order(self.simulation.settings, self.spec.seed)
        evaluations = evaluate_clients(self.simulation.engine, model, self.tested, order)
        return ClientSpread.of((each.value(self.metric.name) for each in evaluations), self.metric)

    def _record(self, row: RoundRow | None, evals: list[EvalRow], clients: list[ClientRow]) -> None:
        self.recorder.record(row, evals, clients)
        if row is not None:
            self.sink.on_clients(clients)
            self.sink.on_round(row._asdict())
        for each in evals:
            self.sink.on_evaluation(each.to_dict())
        self.reached.add(evals)
        if evals:
            self.value = evals[-1].value(self.metric.name)

    def _log_rejected_reports(self, result: RoundResult) -> None:
        """Log each rejected report, with the reason and the round until which its client is suspended."""
        for missing in result.missing:
            if missing.problem:
                until = self.state.suspensions.until[missing.client]
                self.recorder.log(
                    "report left out", client=missing.client, round=self.state.round, why=missing.problem, until=until
                )

    def _restore_evaluations(self, frames: dict[str, pl.DataFrame]) -> None:
        self.reached.add(EvalRow.from_dict(row) for row in frames["evals"].iter_rows(named=True))
        self.start_s = float(frames["rounds"]["start_s"][-1]) if frames["rounds"].height else 0.0

    def _save(self, force: bool) -> None:
        now = time.monotonic()
        if force or now - self.saved_at >= self.simulation.settings.checkpoint_s:
            self.recorder.checkpoint(self.state, {"value": self.value}, self.simulation.engine.snapshot())
            self.saved_at = now
        if now - self.tables_at >= TABLES_EVERY_S:
            self.recorder.write_tables()
            self.tables_at = now

    def _progress(self) -> Progress:
        budget_s = self.spec.budget_s
        share = self.state.clock_s / budget_s if budget_s is not None else self.state.round / self.rounds
        return Progress(self.state.round, self.state.clock_s, self.value, min(share, 1.0), self.metric.title)


def _check_finite(evaluation: Evaluation, round_number: int) -> None:
    if not math.isfinite(evaluation.loss):
        raise TrainingDiverged(
            f"round {round_number}: the test loss of the global model is {evaluation.loss}; try a smaller learning_rate"
        )


@contextmanager
def one_thread(without_torch: bool = False) -> Iterator[None]:
    """Restrict torch to one thread: results do not depend on the machine's load, and runs do not compete for cores.

    Args:
        without_torch: Do nothing, because the run does not train.
    """
    if without_torch or find_spec("torch") is None:
        yield
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def grid_times(step_s: float, after_s: float, until_s: float) -> list[float]:
    """Return the grid times in a round, including its end but not its start.

    All runs with the same step have the same grid, however long their rounds are. So no method gets more chances to
    reach a target than another, and a resumed run stays on its grid.

    Args:
        step_s: Seconds between two grid times.
        after_s: The start of the round.
        until_s: The end of the round.

    >>> grid_times(10.0, 20.0, 45.0), grid_times(10.0, 45.0, 50.0), grid_times(10.0, 50.0, 59.0)
    ([30.0, 40.0], [50.0], [])
    """
    first, last = (math.floor(clock_s / step_s * (1 + CLOCK_SLACK)) for clock_s in (after_s, until_s))
    return [number * step_s for number in range(first + 1, last + 1)]


def is_at(time_s: float, end_s: float) -> bool:
    """Return whether a grid time is the very end of a round, when its new model exists.

    Args:
        time_s: The grid time.
        end_s: The end of the round.
    """
    return time_s >= end_s * (1 - CLOCK_SLACK)


class ReachedValue:
    """The best value of a metric that a run has reached.

    Args:
        on_grid: Whether a value counts only if it is held on the grid of seconds. Otherwise every single evaluation by
            rounds counts.
        metric: The metric. Its values are multiplied by its sign, so that higher is better.
    """

    def __init__(self, on_grid: bool, metric: Metric = ACCURACY) -> None:
        self._on_grid, self._metric = on_grid, metric
        self._touched = self._held = -math.inf
        self._window: deque[float] = deque(maxlen=HELD)

    def add(self, rows: Iterable[EvalRow]) -> None:
        """Add evaluations, in order."""
        for row in rows:
            value = self._metric.sign * row.value(self._metric.name)
            if row.schedule == SECONDS:
                self._window.append(value)
                if len(self._window) == HELD:
                    self._held = max(self._held, total(self._window) / HELD)
            elif row.clock_s > 0:
                self._touched = max(self._touched, value)

    def is_at(self, target: float) -> bool:
        """Return whether the target is reached."""
        return (self._held if self._on_grid else self._touched) >= self._metric.sign * target


def population_rows(simulation: Simulation, state: ServerState) -> list[PopulationRow]:
    """Evaluate the final model on the data of every client: its own test data or, if it has none, its training data.

    Args:
        simulation: The run.
        state: The state of the server at the end of the run.

    Returns:
        A row per client, ordered by client id. If there are more than `eval_clients` clients, only that many are
        evaluated. The seed draws them, so they are the same for every method.
    """
    ledger, devices = state.ledger, simulation.engine.devices
    classes_of = getattr(devices, "device_classes", None)
    classes = classes_of(ledger.clients) if classes_of is not None else [""] * len(ledger.clients)
    drawn = _draw_clients(ledger.clients, simulation.settings.eval_clients, simulation.spec.seed)
    order = first_order(simulation.settings, simulation.spec.seed)
    evaluations = evaluate_clients(simulation.engine, simulation.server.model(state), drawn, order)
    by_client = dict(zip(drawn, evaluations, strict=True))
    tests = simulation.task.client_tests
    return [
        PopulationRow.from_evaluation(client, samples, device, state.clock_s, by_client.get(client), client in tests)
        for client, samples, device in zip(ledger.clients, ledger.size.tolist(), classes, strict=True)
    ]


def class_rows(simulation: Simulation, state: ServerState) -> list[ClassRow]:
    """Return the number of trained samples of every class.

    Args:
        simulation: The run.
        state: The state of the server at the end of the run.

    Returns:
        A row per class; none if the classes were not counted.
    """
    counts = simulation.engine.classes
    if counts is None:
        return []
    pairs = zip(counts.held.tolist(), counts.trained.tolist(), strict=True)
    return [ClassRow(label, held, trained, state.clock_s) for label, (held, trained) in enumerate(pairs)]


def _draw_clients(clients: tuple[str, ...], most: int, seed: int) -> list[str]:
    if len(clients) <= most:
        return list(clients)
    drawn = stream(seed, "evaluated clients").choice(len(clients), size=most, replace=False)
    return [clients[row] for row in sorted(drawn.tolist())]


def personal_model(engine: SimulatedEngine, weights: Weights, client: str, order: Order) -> Weights:
    """Return the model that a client uses: its part of the global model, with its own layers, after fine-tuning.

    Fine-tuning is plain training of the whole model on all of the client's samples. It changes no client's state. A
    client whose fine-tuning diverges uses the model without it.

    Args:
        engine: The engine, which has the clients' states.
        weights: The global model.
        client: The client's id.
        order: Batch size, learning rate and seed of the fine-tuning.
    """
    row, policies = engine.ledger.position[client], engine.policies
    part = None if engine.costs is None else engine.costs.part(client, order)
    model = start_model(weights, part, engine.memory.of(row).state)
    if not policies.train.tuning_epochs:
        return model
    tuned = ClientRound(ClientPolicies(), order, client, int(engine.ledger.size[row]), ClientMemory())
    work = tuned.work(tuned.per_epoch * policies.train.tuning_epochs)
    (trained,) = engine.executor.train(model, [work])
    if isinstance(trained, DivergedTraining):
        _log.warning("fine-tuning of client %r is left out of its evaluation: %s", client, trained.problem)
        return model
    return model + trained.update


def evaluate_clients(
    engine: SimulatedEngine, weights: Weights, clients: Sequence[str], order: Order
) -> list[Evaluation]:
    """Evaluate a model on the data of clients, as each of them would use it.

    Args:
        engine: The engine.
        weights: The global model.
        clients: Ids of the clients.
        order: Batch size, learning rate and seed of clients that fine-tune the model first.
    """
    shared = engine.policies.part.is_whole and not engine.policies.train.tuning_epochs
    if shared or not len(weights):
        return engine.executor.evaluate_clients(weights, clients)
    models = ((personal_model(engine, weights, client, order), client) for client in clients)
    return [engine.executor.evaluate_clients(model, [client])[0] for model, client in models]
