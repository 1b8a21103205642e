"""Starts or resumes one run, runs it to its end, and returns its result."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from fedbalancer.core.errors import FedBalancerError, RunFolderError, UnknownName
from fedbalancer.core.metrics import ACCURACY, Metric
from fedbalancer.core.types import Weights
from fedbalancer.data import Task
from fedbalancer.experiments.executor_cache import ExecutorCache
from fedbalancer.experiments.progress import Observer, Progress, run_display, shows_progress
from fedbalancer.experiments.rounds import INTERRUPTED, Recorder, RunLoop, Stopped, one_thread
from fedbalancer.experiments.run_warnings import missing_kernels, warnings_for_run
from fedbalancer.experiments.simulation import build, check_settings, check_target, resolve_spec
from fedbalancer.experiments.spec import (
    ExecutionOptions,
    RunOptions,
    RunSpec,
    from_manifest,
    move_policies_into_names,
    split_options,
)
from fedbalancer.experiments.trust import EVERYTHING, check_trusted, code_of, remember
from fedbalancer.methods.table import Method
from fedbalancer.simulation.executors import Resources
from fedbalancer.store import MemoryRecorder, RunFolder
from fedbalancer.store.privacy import describe_privacy, privacy_rows
from fedbalancer.store.tracking import Callbacks, Hook, Sink, open_sinks

if TYPE_CHECKING:
    import polars as pl

    from fedbalancer.reporting.notebook import Plot


@dataclass(frozen=True, eq=False, repr=False)
class RunResult:
    """The tables and the weights of a run. In a notebook it renders as a table.

    The tables have the same columns as those in the run folder, without task, method and seed.

    Args:
        status: done or stopped.
        folder: The run folder; None for a run in memory.
        rounds: A row per round.
        evals: A row per evaluation.
        clients: A row per client and round.
        weights: The weights of the final model.
        population: A row per client at the end of the run, with the model's metrics on its data; None if the run was
            stopped.
        classes: A row per class with its number of trained samples; None if classes were not counted.
        privacy: The epsilon of every client; None if its metadata has no noise.
        task: The task's name.
        method: The method's name.
        seed: The seed.
        metric: The main metric, which targets and scores use.

    >>> import fedbalancer as fb
    >>> fb.run("synthetic", "fedavg+1t", users=8, rounds=2, timing_only=True).rounds["selected"].to_list()
    [8, 8]
    """

    status: str
    folder: Path | None
    rounds: pl.DataFrame
    evals: pl.DataFrame
    clients: pl.DataFrame
    weights: Weights
    population: pl.DataFrame | None = None
    classes: pl.DataFrame | None = None
    privacy: pl.DataFrame | None = None
    task: str = ""
    method: str = ""
    seed: int = 0
    metric: Metric = ACCURACY

    @property
    def value(self) -> float:
        """Main metric at the last evaluation; NaN if there was none."""
        return float(self.evals[self.metric.name][-1]) if len(self.evals) else math.nan

    @property
    def accuracy(self) -> float:
        """Accuracy at the last evaluation; NaN if there was none."""
        return float(self.evals["accuracy"][-1]) if len(self.evals) else math.nan

    @property
    def clock_s(self) -> float:
        """Simulated seconds at the end of the last round."""
        return float(self.rounds["end_s"][-1]) if len(self.rounds) else 0.0

    def __repr__(self) -> str:
        reached = "" if math.isnan(self.value) else f", {self.metric.title} {self.value:.3f}"
        name = f"{self.task}, {self.method}, seed {self.seed}, {self.status}"
        return f"RunResult({name}: {len(self.rounds)} rounds, {self.clock_s:,.0f} s{reached})"

    def _repr_html_(self) -> str:
        shown = {
            "task": self.task, "method": self.method, "seed": self.seed, "status": self.status,
            "rounds": len(self.rounds), "simulated seconds": f"{self.clock_s:,.0f}",
            self.metric.title: f"{self.value:.3f}",
        }  # fmt: skip
        cells = "".join(f"<tr><th>{name}</th><td>{escape(str(value))}</td></tr>" for name, value in shown.items())
        return f"<table>{cells}</table>"

    def to_polars(self) -> pl.DataFrame:
        """Return the evaluations as a polars table, with task, method and seed."""
        import polars as pl

        names = {"task": pl.lit(self.task), "method": pl.lit(self.method), "seed": pl.lit(self.seed, dtype=pl.Int64)}
        return self.evals.with_columns(**names)

    def to_pandas(self) -> Any:
        """Return the evaluations as a pandas table, with task, method and seed."""
        from fedbalancer.reporting.notebook import to_pandas

        return to_pandas(self.to_polars())

    def plot(self) -> Plot:
        """Plot the main metric over time. `result.plot().save("picture.png")` writes it to a file."""
        from fedbalancer.reporting.notebook import plot_run
        from fedbalancer.reporting.results import RunCurve, split_by_schedule

        by_rounds, grid = split_by_schedule(self.evals)
        curve = RunCurve(self.method, self.seed, by_rounds, self.status, self.clock_s, None, grid, None, self.metric)
        return plot_run(self.task, curve)


__all__ = ["RunResult", "continue_run", "execute", "resume", "run", "run_to_end"]

BUDGET_SPENT = "every client has spent its epsilon_budget"
"""Why a run ends before its rounds or its time are over."""
OnProgress = Callable[[Progress], None]
"""Called after every round."""


def run(
    task: str | Task,
    method: str | Method = "fedbalancer",
    seed: int = 0,
    *,
    budget_s: float | None = None,
    target: float | None = None,
    timing_only: bool = False,
    out: Path | str | None = None,
    overwrite: bool = False,
    on_round: Hook | None = None,
    on_eval: Hook | None = None,
    progress: bool | None = None,
    observer: Observer | None = None,
    stopped: Stopped = lambda: False,
    **options: Unpack[RunOptions],
) -> RunResult:
    """Run one method on one task.

    Args:
        task: A task's name, a TOML file, `package.module:function`, or a `Task`.
        method: A method's name, or a `Method`.
        seed: Determines everything random. The same seed gives the same bytes.
        budget_s: Simulated seconds to run for, instead of a number of rounds.
        target: Value of the main metric at which the run stops before its rounds or its time are over. One evaluation
            must reach it or, with `eval_every_s`, the mean of three consecutive ones. The status is then done.
        timing_only: Simulate only the clock; train nothing.
        out: Run folder, from which the run can be resumed. Default: nothing is written to disk.
        overwrite: Replace a run that exists in the folder.
        on_round: Called with every row of `rounds`. If it returns `fedbalancer.STOP`, the run saves its state and stops
            after this round, with the status stopped; `resume` continues it. An exception in it ends the run.
        on_eval: Called with every row of `evals`, also before the first round. It may return `fedbalancer.STOP` too.
        progress: Show progress on stderr. Default: in notebooks only.
        observer: Receives the loaded task and warnings. Default: Python warnings.
        stopped: Called after every round; if it returns True or a reason, the run saves its state and stops.
        **options: Further options, see `RunOptions` and `ExecutionOptions`.

    Returns:
        The tables and the weights of the run.

    Raises:
        FedBalancerError: If an option, the task or the run folder is invalid, or training diverges.

    >>> import fedbalancer as fb
    >>> result = fb.run("synthetic", "fedavg+1t", users=8, rounds=2, timing_only=True)
    >>> len(result.rounds), result.status
    (2, 'done')
    >>> third = lambda row: fb.STOP if row["round"] == 3 else None
    >>> result = fb.run("synthetic", "fedavg+1t", users=8, timing_only=True, on_round=third)
    >>> len(result.rounds), result.status
    (3, 'stopped')
    """
    observer = observer if observer is not None else Observer()
    spec_options, execution = split_options(options)
    spec = RunSpec(
        task=task, method=method, seed=seed, budget_s=budget_s, target=target, timing_only=timing_only, **spec_options
    )
    spec, _ = move_policies_into_names(spec, [spec.method])
    callbacks = Callbacks(on_round, on_eval)
    resources = _add_callbacks(execution, callbacks)
    with ExecutorCache(resources) as executors:
        begun_s = time.perf_counter()
        loaded = executors.load_task(spec)
        seconds = time.perf_counter() - begun_s
        spec = spec.with_devices_of(loaded)
        check_settings([spec], loaded)
        check_target(spec, loaded)
        warnings = warnings_for_run(spec, loaded)
        observer.on_task(loaded, seconds)
        observer.on_warnings(warnings)
        if out is not None:
            remember(code_of(spec))
        with run_display(f"{loaded.name} {spec.method_name} seed {seed}", shows_progress(progress)) as on_progress:
            result = execute(
                spec, Path(out) if out is not None else None, task=loaded, overwrite=overwrite, executors=executors,
                progress=on_progress, stopped=lambda: callbacks.stop_reason or stopped(),
            )  # fmt: skip
        observer.on_warnings(missing_kernels(spec))
        return result


def _add_callbacks(execution: Mapping[str, Any], callbacks: Callbacks) -> Resources:
    """Return the resources of a run, with the callbacks among its trackers if there are any."""
    own = () if callbacks.round_hook is None and callbacks.evaluation_hook is None else (callbacks,)
    return Resources(**{**execution, "track": (*execution.get("track", ()), *own)})


def execute(
    spec: RunSpec,
    out: Path | None = None,
    *,
    task: Task | None = None,
    overwrite: bool = False,
    executors: ExecutorCache | None = None,
    progress: OnProgress = lambda _: None,
    stopped: Stopped = lambda: False,
) -> RunResult:
    """Run a spec.

    Args:
        spec: The run.
        out: A new run folder; None keeps the run in memory.
        task: The task, if it is loaded.
        overwrite: Replace a run that exists in the folder.
        executors: Tasks and workers to use. Default: this process trains.
        progress: Called after every round.
        stopped: Called after every round; if it returns True or a reason, the run saves its state and stops.
    """
    executors = executors if executors is not None else ExecutorCache()
    task = executors.load_task(spec, task)
    spec = spec.with_devices_of(task)
    settings, method = resolve_spec(spec, task)
    executors.check(spec)
    if out is None:
        return run_to_end(spec, task, MemoryRecorder(), executors, progress, stopped)
    manifest = {**spec.manifest(task, settings, method), "privacy": describe_privacy(method, settings)}
    with RunFolder.create(out, manifest, overwrite=overwrite) as folder:
        folder.log("started", method=spec.method_name, seed=spec.seed)
        result = run_to_end(spec, task, folder, executors, progress, stopped)
        folder.update_manifest(kernels=spec.kernels())  # now it is known which ones were used
        return result


def resume(
    out: Path | str,
    *,
    task: Task | None = None,
    method: Method | None = None,
    devices: Any = None,
    backend: str | None = None,
    device: str | None = None,
    budget_s: float | None = None,
    target: float | None = None,
    on_round: Hook | None = None,
    on_eval: Hook | None = None,
    trust: bool = False,
    progress: OnProgress = lambda _: None,
    stopped: Stopped = lambda: False,
    **options: Unpack[ExecutionOptions],
) -> RunResult:
    """Resume a run from its last checkpoint. It ends with the same bytes as an uninterrupted run.

    A run that is done is returned unchanged, unless a longer `budget_s` or a higher `target` extends it. A run that a
    callback stopped continues; pass the callbacks again if they are still needed.

    Args:
        out: The run folder.
        task: The `Task` object, if the run was started with one.
        method: The `Method` object, if the run was started with one.
        devices: The device model, if the run was started with an object other than a `Fleet`.
        backend: Training backend: fast or plain. Default: the run's.
        device: Where torch computes: cpu, cuda or mps. Default: the run's.
        budget_s: A new budget in simulated seconds.
        target: A value of the main metric at which the run stops. Default: the run's.
        on_round: Called with every further row of `rounds`; may return `fedbalancer.STOP`.
        on_eval: Called with every further row of `evals`; may return `fedbalancer.STOP`.
        trust: Run code that the folder names. By default only code with which you started a run before is run.
        progress: Called after every round.
        stopped: Called after every round; if it returns True or a reason, the run saves its state and stops.
        **options: Further options, see `ExecutionOptions`.

    Returns:
        The tables and the weights of the run.

    Raises:
        RunFolderError: If the folder holds no run, or a damaged one.
        UntrustedCode: If the folder names code that is not trusted.

    >>> import tempfile
    >>> import fedbalancer as fb
    >>> folder = tempfile.mkdtemp() + "/run"
    >>> first = fb.run("synthetic", "fedavg+1t", users=8, rounds=2, timing_only=True, out=folder)
    >>> fb.resume(folder).rounds.equals(first.rounds)
    True
    """
    unknown = options.keys() - ExecutionOptions.__annotations__.keys()
    if unknown:
        raise UnknownName("option", sorted(unknown)[0], tuple(ExecutionOptions.__annotations__))
    callbacks = Callbacks(on_round, on_eval)
    with ExecutorCache(_add_callbacks(options, callbacks)) as executors:
        requested = {"backend": backend, "device": device, "budget_s": budget_s, "target": target}
        changes = {name: value for name, value in requested.items() if value is not None}
        return continue_run(
            Path(out), executors, changes, task=task, method=method, devices=devices,
            trusted=EVERYTHING if trust else (),
            progress=progress, stopped=lambda: callbacks.stop_reason or stopped(),
        )  # fmt: skip


def continue_run(
    out: Path,
    executors: ExecutorCache,
    changes: Mapping[str, Any],
    *,
    task: Task | None = None,
    method: Method | None = None,
    devices: Any = None,
    trusted: Collection[str] | None = (),
    progress: OnProgress = lambda _: None,
    stopped: Stopped = lambda: False,
) -> RunResult:
    """Continue the run in a folder.

    Args:
        out: The run folder.
        executors: Tasks and workers to use.
        changes: Changes to the run's spec.
        task: The `Task` object, if the run was started with one.
        method: The `Method` object, if the run was started with one.
        devices: The devices, if the run was started with an object.
        trusted: Code (`code_of`) that may run besides code with which the user started a run before; None for all.
        progress: Called after every round.
        stopped: Called after every round; if it returns True or a reason, the run saves its state and stops.
    """
    with RunFolder.open(out) as folder:
        spec = replace(from_manifest(folder.manifest, task, method, devices), **changes)
        check_trusted(code_of(spec), trusted)
        executors.check(spec)
        folder.update_manifest(**spec.manifest_fields(), status="running", why=None)
        folder.log("resumed", **changes)
        return run_to_end(spec, executors.load_task(spec, task), folder, executors, progress, stopped)


def run_to_end(
    spec: RunSpec, task: Task, recorder: Recorder, executors: ExecutorCache, progress: OnProgress, stopped: Stopped
) -> RunResult:
    """Run all rounds that are left, and record how the run ended, also if it failed.

    Args:
        spec: The run.
        task: The loaded task.
        recorder: The run folder, or the record of a run in memory.
        executors: Tasks and workers to use.
        progress: Called after every round.
        stopped: Called after every round; if it returns True or a reason, the run saves its state and stops.

    Returns:
        The tables and the weights of the run.
    """
    sink = _open_sink(spec, task, recorder, executors)
    try:
        return _run_rounds(spec, task, recorder, sink, executors, progress, stopped)
    except FedBalancerError as error:
        _record_failure(recorder, sink, "failed", str(error))
        raise
    except KeyboardInterrupt:
        _record_failure(recorder, sink, "stopped", INTERRUPTED)
        raise
    except OSError as error:
        _record_failure(recorder, sink, "failed", f"{type(error).__name__}: {error}")
        raise RunFolderError(_disk_error(error, recorder.path)) from error
    except BaseException as error:
        _record_failure(recorder, sink, "failed", f"{type(error).__name__}: {error}")
        raise


def _open_sink(spec: RunSpec, task: Task, recorder: Recorder, executors: ExecutorCache) -> Sink:
    """Open the run's sinks and send them the manifest. Failures of sinks are written to the run's log."""
    if not executors.resources.track:
        return Sink()

    def log_failure(name: str, why: str) -> None:
        recorder.log("sink failed", sink=name, why=why)

    sink = open_sinks(executors.resources.track, recorder.path, log_failure)
    if isinstance(recorder, RunFolder):
        sink.on_start(dict(recorder.manifest))
    else:
        sink.on_start(spec.manifest(task, *resolve_spec(spec, task)))
    return sink


def _record_failure(recorder: Recorder, sink: Sink, status: str, why: str) -> None:
    """Record that a run failed or was interrupted, unless the disk itself is the problem."""
    with suppress(OSError):
        recorder.finish(status, why)
    sink.on_end(status)


def _disk_error(error: OSError, folder: Path | None) -> str:
    """Describe a disk that is full, read-only, broken or gone, and what to do."""
    if folder is None:
        return f"the run stopped: {error}"
    if not folder.is_dir():
        return f"the run stopped: {error}; its folder {folder} is gone, so it has to start again"
    return (
        f"the run stopped: {error}; its checkpoints are intact. When {folder} can be written again, continue with: "
        f"fedbalancer resume {shlex.quote(str(folder))}"
    )


def _run_rounds(
    spec: RunSpec,
    task: Task,
    recorder: Recorder,
    sink: Sink,
    executors: ExecutorCache,
    progress: OnProgress,
    stopped: Stopped,
) -> RunResult:
    with one_thread(spec.timing_only):
        manifest = recorder.manifest if isinstance(recorder, RunFolder) else None
        simulation = build(spec, task, executors.executor(spec, task), manifest)
        loop = RunLoop(simulation, recorder, sink, progress)
        finished = loop.run(stopped)
    status, why = ("done", _why_done(loop)) if finished else ("stopped", loop.stop_reason)
    if (spending := simulation.engine.spending) is not None:
        clients = loop.state.ledger.clients
        privacy = privacy_rows(simulation.method, simulation.settings, clients, spending.releases)
        recorder.record_privacy(privacy)
        sink.on_privacy(privacy)
    model = simulation.server.model(loop.state)
    recorder.finish(status, why, model, simulation.executor.layout)
    sink.on_end(status)
    return RunResult(
        status=status, folder=recorder.path, weights=model, population=recorder.population(),
        classes=recorder.classes(), privacy=recorder.privacy(), task=task.name, method=spec.method_name,
        seed=spec.seed, metric=loop.metric.plain, **recorder.frames(),
    )  # fmt: skip


def _why_done(loop: RunLoop) -> str | None:
    """Return why a run is done before its rounds or its time are over; None if they are over."""
    if loop.is_at_target:
        name = "" if loop.metric == ACCURACY else f"{loop.metric.title} "
        return f"reached the target {name}{loop.spec.target:g}"
    return BUDGET_SPENT if loop.is_spent else None
