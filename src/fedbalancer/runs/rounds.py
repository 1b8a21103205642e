"""The rounds of one run, with what goes on between them: evaluation, recording, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TypeAlias

from fedbalancer.errors import TrainingDiverged
from fedbalancer.loop import rounds as run_rounds
from fedbalancer.runs.simulation import Simulation
from fedbalancer.store import ClientRow, EvalRow, MemoryRecorder, RoundRow, RunFolder
from fedbalancer.types import Evaluation, ServerState

Recorder: TypeAlias = RunFolder | MemoryRecorder
TABLES_EVERY_S = 10.0
"""How often the tables on disk are brought up to date while a run is going on."""


@dataclass(frozen=True)
class Progress:
    """Where a run stands: `share` is the part of its rounds or budget that is behind it."""

    round: int
    clock_s: float
    accuracy: float | None
    share: float


class RunLoop:
    """Begins with the first round, or after the last one that `recorder` has saved."""

    def __init__(self, simulation: Simulation, recorder: Recorder, progress: Callable[[Progress], None]) -> None:
        self.simulation, self.spec = simulation, simulation.spec
        self.recorder, self.progress = recorder, progress
        self.rounds = self.spec.rounds if self.spec.rounds is not None else simulation.settings.rounds
        self.accuracy: float | None = None
        self.saved_at = self.tables_at = time.monotonic()
        self.state = simulation.server.init(simulation.executor.initial_weights(self.spec.seed))
        restored = recorder.restore(self.state)
        if restored is not None:
            self.state, memory, arrays = restored
            simulation.engine.restore(arrays)
            self.accuracy = memory["accuracy"]
        else:
            self._evaluate(0.0)

    def go(self, stopped: Callable[[], bool]) -> bool:
        """Run until the end; False if it was stopped before."""
        before = self.state
        if stopped():
            return self.is_over(before)
        self.progress(self._progress())
        for state, result in run_rounds(self.simulation.server, self.simulation.engine, self.state, self.is_over):
            self.state = state
            row, clients = RoundRow.of(before, state, result), ClientRow.all_of(result)
            due = state.round % self.simulation.settings.eval_every == 0 or self.is_over(state, with_target=False)
            self._evaluate(before.clock_s, row, clients) if due else self.recorder.record(row, None, clients)
            before = state
            self.progress(self._progress())
            self._save(force=stopped())
            if stopped():
                break
        self._save(force=True)
        return self.is_over(self.state)

    def is_over(self, state: ServerState, with_target: bool = True) -> bool:
        """Whether the budget, the rounds or the target is reached."""
        spec = self.spec
        if with_target and spec.target is not None and self.accuracy is not None and self.accuracy >= spec.target:
            return True
        return state.clock_s >= spec.budget_s if spec.budget_s is not None else state.round >= self.rounds

    def _evaluate(self, start_s: float, row: RoundRow | None = None, clients: Sequence[ClientRow] = ()) -> None:
        found = None
        if not self.spec.timing_only:
            evaluation = self.simulation.engine.evaluate(self.state.weights)
            _check_finite(evaluation, self.state.round)
            self.accuracy = evaluation.accuracy
            found = EvalRow.of(self.state, start_s, evaluation)
        if row is not None or found is not None:
            self.recorder.record(row, found, clients)

    def _save(self, force: bool) -> None:
        now = time.monotonic()
        if force or now - self.saved_at >= self.simulation.settings.checkpoint_s:
            self.recorder.checkpoint(self.state, {"accuracy": self.accuracy}, self.simulation.engine.snapshot())
            self.saved_at = now
        if now - self.tables_at >= TABLES_EVERY_S:
            self.recorder.write_tables()
            self.tables_at = now

    def _progress(self) -> Progress:
        budget_s = self.spec.budget_s
        share = self.state.clock_s / budget_s if budget_s is not None else self.state.round / self.rounds
        return Progress(self.state.round, self.state.clock_s, self.accuracy, min(share, 1.0))


def _check_finite(evaluation: Evaluation, round: int) -> None:
    if not math.isfinite(evaluation.loss):
        raise TrainingDiverged(
            f"round {round}: the global model's test loss is {evaluation.loss}; a smaller learning_rate may help"
        )


@contextmanager
def one_thread(without_torch: bool = False) -> Iterator[None]:
    """Torch on one thread while a run goes on: the same bytes on any machine load, and no quarrel between runs."""
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
