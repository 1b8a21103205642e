"""The rounds of one run, with what goes on between them: evaluation, recording, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeAlias

from fedbalancer.client.summary import forward_pass_every_round
from fedbalancer.core.errors import TrainingDiverged
from fedbalancer.core.types import Evaluation, RoundResult, ServerState, Weights
from fedbalancer.experiments.grid import Reached, grid_times, is_at
from fedbalancer.experiments.population import classes_of, population_of
from fedbalancer.experiments.simulation import Simulation
from fedbalancer.server.loop import rounds as run_rounds
from fedbalancer.store import ClientRow, EvalRow, MemoryRecorder, RoundRow, RunFolder

if TYPE_CHECKING:
    import polars as pl

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
        self.start_s = 0.0
        self.reached = Reached(on_grid=simulation.settings.eval_every_s is not None)
        self.evaluated: tuple[Weights, Evaluation] | None = None
        self.saved_at = self.tables_at = time.monotonic()
        self.state = simulation.server.init(simulation.executor.initial_weights(self.spec.seed))
        restored = recorder.restore(self.state)
        if restored is not None:
            self.state, memory, arrays = restored
            simulation.engine.restore(arrays)
            if not simulation.engine.saves_losses and not forward_pass_every_round(simulation.method.client):
                recorder.log(
                    "exact losses were not saved", why="the run is private; clients look at their samples again, so "
                    "its results may differ from those of a run that was not stopped (save_exact_losses=true)",
                )  # fmt: skip
            self.accuracy = memory["accuracy"]
            self._take_up(recorder.frames())
        elif not self.spec.timing_only:
            self._record(None, self._first_evals(), [])

    def go(self, stopped: Callable[[], bool]) -> bool:
        """Run until the end; False if it was stopped before."""
        before = self.state
        if stopped():
            return self.is_over(before)
        self.progress(self._progress())
        for state, result in run_rounds(self.simulation.server, self.simulation.engine, self.state, self.is_over):
            self.state = state
            evals = [] if self.spec.timing_only else self._evals(before)
            row = RoundRow.from_round(before, state, result, self.simulation.engine.seen_losses)
            self._record(row, evals, ClientRow.from_round(result))
            self._tell_faults(result)
            before = state
            self.progress(self._progress())
            self._save(force=stopped())
            if stopped():
                break
        self._save(force=True)
        over = self.is_over(self.state)
        if over and not self.spec.timing_only and not self.recorder.has_population:
            self.recorder.record_classes(classes_of(self.simulation, self.state))
            self.recorder.record_population(population_of(self.simulation, self.state))
        return over

    def is_over(self, state: ServerState, with_target: bool = True) -> bool:
        """Whether the budget, the rounds or the target is reached."""
        spec = self.spec
        if with_target and spec.target is not None and self.reached.is_at(spec.target):
            return True
        if self.is_spent:
            return True
        return state.clock_s >= spec.budget_s if spec.budget_s is not None else state.round >= self.rounds

    @property
    def is_spent(self) -> bool:
        """Whether the privacy budget leaves nobody to ask."""
        spending = self.simulation.engine.spending
        return spending is not None and spending.is_over(self.state.ledger.clients)

    def _first_evals(self) -> list[EvalRow]:
        """The evaluations before the first round."""
        at_s = [None] if self.simulation.settings.eval_every_s is None else [None, 0.0]
        return [EvalRow.from_evaluation(self.state, 0.0, self._evaluation(self.state), each) for each in at_s]

    def _evals(self, before: ServerState) -> list[EvalRow]:
        """The evaluations that fall due with the round from `before` to now: at a time of the grid within it the model
        from before it exists, at its very end the new one."""
        settings, now = self.simulation.settings, self.state
        step_s = settings.eval_every_s
        times_s = [] if step_s is None else grid_times(step_s, before.clock_s, now.clock_s)
        within = [at_s for at_s in times_s if not is_at(at_s, now.clock_s)]
        rows = [EvalRow.from_evaluation(before, self.start_s, self._evaluation(before), at_s) for at_s in within]
        self.start_s = before.clock_s
        asking: list[float | None] = [*times_s[len(within) :]]
        if now.round % settings.eval_every == 0 or self.is_over(now, with_target=False):
            asking.insert(0, None)
        return rows + [EvalRow.from_evaluation(now, self.start_s, self._evaluation(now), at_s) for at_s in asking]

    def _evaluation(self, state: ServerState) -> Evaluation:
        """Of the model in a state; a model that is asked for again, as after a lost round, is evaluated once."""
        if self.evaluated is None or self.evaluated[0] is not state.weights:
            found = self.simulation.engine.evaluate(self.simulation.server.model(state))
            _check_finite(found, state.round)
            self.evaluated = state.weights, found
        return self.evaluated[1]

    def _record(self, row: RoundRow | None, evals: list[EvalRow], clients: list[ClientRow]) -> None:
        self.recorder.record(row, evals, clients)
        self.reached.note(evals)
        if evals:
            self.accuracy = evals[-1].accuracy

    def _tell_faults(self, result: RoundResult) -> None:
        """Name in the log whose report was left out, why, and until which round it sits out."""
        for missing in result.missing:
            if missing.problem:
                until = self.state.suspensions.until[missing.client]
                self.recorder.log(
                    "report left out", client=missing.client, round=self.state.round, why=missing.problem, until=until
                )

    def _take_up(self, frames: dict[str, pl.DataFrame]) -> None:
        """What the rows of before tell about where the run stands."""
        self.reached.note(EvalRow(**row) for row in frames["evals"].iter_rows(named=True))
        self.start_s = float(frames["rounds"]["start_s"][-1]) if frames["rounds"].height else 0.0

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
