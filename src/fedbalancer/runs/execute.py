"""One run from start, or from where it stopped, to its end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

from fedbalancer.errors import FedBalancerError, TrainingDiverged
from fedbalancer.loop import rounds as run_rounds
from fedbalancer.methods import Method
from fedbalancer.runs.rows import client_rows, eval_row, round_row
from fedbalancer.runs.spec import RunSpec, from_manifest
from fedbalancer.runs.workforce import Workforce
from fedbalancer.runs.world import World, build, resolve_spec
from fedbalancer.store import RunFolder
from fedbalancer.tasks import Task
from fedbalancer.types import Evaluation, ServerState, Weights

TABLES_EVERY_S = 10.0
"""How often the tables on disk are brought up to date while a run is going on."""


@dataclass(frozen=True)
class Progress:
    """Where a run stands: `share` is the part of its rounds or budget that is behind it."""

    round: int
    clock_s: float
    accuracy: float | None
    share: float


@dataclass(frozen=True, eq=False)
class RunResult:
    """A run that ended: `status` is done or stopped. Frames have the columns of the tables in the run folder."""

    status: str
    folder: Path | None
    rounds: pl.DataFrame
    evals: pl.DataFrame
    clients: pl.DataFrame
    weights: Weights

    @property
    def accuracy(self) -> float:
        """Accuracy at the last evaluation."""
        return float(self.evals["accuracy"][-1]) if len(self.evals) else math.nan


def run(
    task: str | Task,
    method: str | Method = "fedbalancer",
    seed: int = 0,
    *,
    scale: str = "small",
    users: int | None = None,
    settings: Mapping[str, Any] | None = None,
    rounds: int | None = None,
    budget_s: float | None = None,
    out: Path | str | None = None,
    overwrite: bool = False,
    workers: int | None = 1,
    executor: str | None = None,
    address: str | None = None,
    engine: str = "fast",
    device: str = "cpu",
    timing_only: bool = False,
    variant: str | None = None,
) -> RunResult:
    """Run one method on one task. Without `out` nothing stays on disk.

    The `executor` is inline, pool or ray (at `address`), all with the same result; with `workers=None` a run starts in
    this process and moves to a pool of all cores if it turns out to be long. A script that uses other processes must
    start runs under `if __name__ == "__main__":`.
    """
    spec = RunSpec(
        task, method, seed, scale, users, settings or {}, rounds, budget_s, None, timing_only, variant, engine, device
    )
    with Workforce(workers, executor, address) as workforce:
        if out is not None:
            return execute(spec, Path(out), overwrite=overwrite, workforce=workforce)
        with TemporaryDirectory(prefix="fedbalancer-") as folder:
            return replace(execute(spec, Path(folder) / "run", workforce=workforce), folder=None)


def execute(
    spec: RunSpec,
    out: Path,
    *,
    task: Task | None = None,
    overwrite: bool = False,
    workforce: Workforce | None = None,
    progress: Callable[[Progress], None] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Run a spec into a new folder; this process trains, unless there is a workforce."""
    task = task if task is not None else spec.load_task()
    settings, _ = resolve_spec(spec, task)
    workforce = workforce if workforce is not None else Workforce()
    workforce.check(spec)
    with RunFolder.create(out, spec.manifest(task, settings), overwrite=overwrite) as folder:
        folder.log("started", method=spec.method_name, seed=spec.seed)
        return _go(spec, task, folder, workforce, progress, stopped)


def resume(
    out: Path | str,
    *,
    task: Task | None = None,
    method: Method | None = None,
    workers: int | None = 1,
    executor: str | None = None,
    address: str | None = None,
    engine: str | None = None,
    device: str | None = None,
    budget_s: float | None = None,
    target: float | None = None,
    progress: Callable[[Progress], None] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Go on with a run from its last checkpoint; a run that is done is returned as it is, unless a new `budget_s`
    (with a `target` accuracy to stop at) carries it further. `engine` and `device` are the run's own, unless told."""
    with Workforce(workers, executor, address) as workforce:
        changes: dict[str, Any] = {} if budget_s is None else {"budget_s": budget_s, "target": target}
        changes |= {key: value for key, value in {"engine": engine, "device": device}.items() if value is not None}
        return carry_on(Path(out), workforce, changes, task=task, method=method, progress=progress, stopped=stopped)


def carry_on(
    out: Path,
    workforce: Workforce,
    changes: Mapping[str, Any],
    *,
    task: Task | None = None,
    method: Method | None = None,
    progress: Callable[[Progress], None] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Go on with a run after these changes to its manifest."""
    with RunFolder.open(out) as folder:
        spec = from_manifest({**folder.manifest, **changes}, task, method)
        workforce.check(spec)
        folder.update_manifest(**changes, status="running", why=None)
        folder.log("resumed", **changes)
        return _go(spec, task if task is not None else spec.load_task(), folder, workforce, progress, stopped)


def _go(
    spec: RunSpec,
    task: Task,
    folder: RunFolder,
    workforce: Workforce,
    progress: Callable[[Progress], None] | None,
    stopped: Callable[[], bool],
) -> RunResult:
    """The run itself, with its end written down whatever it is."""
    try:
        with one_thread(spec.timing_only):
            world = build(spec, task, workforce.executor(spec, task))
            run = _Run(world, folder, progress)
            finished = run.go(stopped)
    except FedBalancerError as error:
        _close_tables(folder, "failed", str(error))
        raise
    except KeyboardInterrupt:
        _close_tables(folder, "stopped", "interrupted")
        raise
    except BaseException as error:
        _close_tables(folder, "failed", f"{type(error).__name__}: {error}")
        raise
    status = "done" if finished else "stopped"
    folder.write_model(run.state.weights, world.executor.layout)
    _close_tables(folder, status, None if finished else "interrupted")
    return _result(folder.path, status, run.state.weights)


def _close_tables(folder: RunFolder, status: str, why: str | None) -> None:
    folder.write_tables()
    folder.set_status(status, why)
    folder.log(status, why=why)


class _Run:
    """The loop of one run: evaluates, records, checkpoints."""

    def __init__(self, world: World, folder: RunFolder, progress: Callable[[Progress], None] | None) -> None:
        self.world = world
        self.folder = folder
        self.progress = progress or (lambda _: None)
        self.rounds = world.spec.rounds if world.spec.rounds is not None else world.settings.rounds
        self.accuracy: float | None = None
        self.saved_at = self.tables_at = time.monotonic()
        self.state = world.server.init(world.executor.initial_weights(world.spec.seed))
        restored = folder.restore(self.state)
        if restored is not None:
            self.state, memory, arrays = restored
            world.engine.restore(arrays)
            self.accuracy = memory["accuracy"]
        else:
            self._evaluate(0.0)

    def go(self, stopped: Callable[[], bool]) -> bool:
        """Run until the end; False if it was stopped before."""
        before = self.state
        if stopped():
            return self.is_over(before)
        self.progress(self._progress())
        for state, result in run_rounds(self.world.server, self.world.engine, self.state, self.is_over):
            self.state = state
            rows = (round_row(before, state, result), client_rows(result))
            due = state.round % self.world.settings.eval_every == 0 or self.is_over(state, with_target=False)
            self._evaluate(before.clock_s, *rows) if due else self.folder.record(rows[0], None, rows[1])
            before = state
            self.progress(self._progress())
            self._save(force=stopped())
            if stopped():
                break
        self._save(force=True)
        return self.is_over(self.state)

    def is_over(self, state: ServerState, with_target: bool = True) -> bool:
        """Whether the budget, the rounds or the target is reached."""
        spec = self.world.spec
        if with_target and spec.target is not None and self.accuracy is not None and self.accuracy >= spec.target:
            return True
        return state.clock_s >= spec.budget_s if spec.budget_s is not None else state.round >= self.rounds

    def _evaluate(self, start_s: float, row: dict[str, Any] | None = None, clients: Any = ()) -> None:
        found = None
        if not self.world.spec.timing_only:
            evaluation = self.world.engine.evaluate(self.state.weights)
            _check_finite(evaluation, self.state.round)
            self.accuracy = evaluation.accuracy
            found = eval_row(self.state.round, start_s, self.state.clock_s, evaluation)
        if row is not None or found is not None:
            self.folder.record(row, found, clients)

    def _save(self, force: bool) -> None:
        now = time.monotonic()
        if force or now - self.saved_at >= self.world.settings.checkpoint_s:
            self.folder.checkpoint(self.state, {"accuracy": self.accuracy}, self.world.engine.snapshot())
            self.saved_at = now
        if now - self.tables_at >= TABLES_EVERY_S:
            self.folder.write_tables()
            self.tables_at = now

    def _progress(self) -> Progress:
        budget_s = self.world.spec.budget_s
        share = self.state.clock_s / budget_s if budget_s is not None else self.state.round / self.rounds
        return Progress(self.state.round, self.state.clock_s, self.accuracy, min(share, 1.0))


def _check_finite(evaluation: Evaluation, round: int) -> None:
    if not math.isfinite(evaluation.loss):
        raise TrainingDiverged(
            f"round {round}: the global model's test loss is {evaluation.loss}; a smaller learning_rate may help"
        )


def _result(folder: Path, status: str, weights: Weights) -> RunResult:
    frames = {name: pl.read_parquet(folder / f"{name}.parquet") for name in ("rounds", "evals", "clients")}
    return RunResult(status=status, folder=folder, weights=weights, **frames)


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
