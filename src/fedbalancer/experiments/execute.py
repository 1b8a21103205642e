"""One run from start, or from where it stopped, to its end."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from fedbalancer.core.errors import FedBalancerError, RunFolderError
from fedbalancer.data import Task
from fedbalancer.experiments.display import is_wanted, run_display
from fedbalancer.experiments.executor_cache import ExecutorCache
from fedbalancer.experiments.result import RunResult
from fedbalancer.experiments.rounds import Progress, Recorder, RunLoop, one_thread
from fedbalancer.experiments.simulation import build, check_settings, resolve_spec
from fedbalancer.experiments.spec import RunOptions, RunSpec, check_options, from_manifest
from fedbalancer.experiments.surprises import absent_kernels, surprises_of_run, warn
from fedbalancer.experiments.tracked import tracked
from fedbalancer.experiments.tracking import Callbacks, Hook
from fedbalancer.experiments.trust import EVERYTHING, check_trusted, code_of, remember
from fedbalancer.experiments.variants import named_in_full
from fedbalancer.methods.table import Method
from fedbalancer.simulation.executors import Resources
from fedbalancer.store import MemoryRecorder, RunFolder
from fedbalancer.store.privacy import describe_privacy, privacy_rows

__all__ = ["RunResult", "carry_on", "execute", "go", "resume", "run"]

SPENT = "every client has spent its epsilon_budget"
"""Why a run is done before its rounds or its time are over."""
Tell = Callable[[Progress], None]
"""Told after every round how far the run has come."""
Stop = Callable[[], bool]
"""Asked after every round whether the run shall save itself and stop."""


def run(
    task: str | Task,
    method: str | Method = "fedbalancer",
    seed: int = 0,
    *,
    budget_s: float | None = None,
    timing_only: bool = False,
    out: Path | str | None = None,
    overwrite: bool = False,
    workers: int | None = 1,
    executor: str | None = None,
    address: str | None = None,
    track: Sequence[Any] = (),
    on_round: Hook | None = None,
    on_eval: Hook | None = None,
    progress: bool | None = None,
    **options: Unpack[RunOptions],
) -> RunResult:
    """Run one method on one task and return its tables and weights.

    `task` and `method` are names, or a `Task` and a `Method` of your own. The run stops after `rounds` rounds or when
    the simulated clock passes `budget_s`; if it is `timing_only`, nothing is trained. The further options are
    explained by `RunOptions`: `settings`, `rounds`, `scale`, `users`, `variant`, `backend`, `device`.

    The folder `out` keeps everything and can be resumed; `overwrite` replaces the run that is there. Without it nothing
    is written to disk.

    The `executor` is inline, pool or ray (at `address`), all with the same result; with `workers=None` a run starts in
    this process and moves to a pool of all cores if it turns out to be long.

    `track` are sinks that are told of every round and evaluation: names as `--track` takes them, or a
    `fedbalancer.experiments.tracking.Sink` of your own. `on_round` and `on_eval` are functions that get each row of
    `rounds` and `evals` as it is made; what they raise ends the run. `progress` shows progress on stderr
    (default: in notebooks only).
    """
    check_options(options)
    spec = RunSpec(task=task, method=method, seed=seed, budget_s=budget_s, timing_only=timing_only, **options)
    spec, _ = named_in_full(spec, [spec.method])
    told = () if on_round is None and on_eval is None else (Callbacks(on_round, on_eval),)
    resources = Resources(workers=workers, executor=executor, address=address, track=(*track, *told))
    if out is not None:
        remember(code_of(spec))
    with ExecutorCache(resources) as executors:
        loaded = executors.load_task(spec)
        check_settings([spec], loaded)
        warn(surprises_of_run(spec, loaded))
        with run_display(f"{spec.method_name} seed {seed}", is_wanted(progress)) as tell:
            result = execute(
                spec, Path(out) if out is not None else None, task=loaded, overwrite=overwrite, executors=executors,
                progress=tell,
            )  # fmt: skip
        warn(absent_kernels(spec))
        return result


def execute(
    spec: RunSpec,
    out: Path | None = None,
    *,
    task: Task | None = None,
    overwrite: bool = False,
    executors: ExecutorCache | None = None,
    progress: Tell = lambda _: None,
    stopped: Stop = lambda: False,
) -> RunResult:
    """Run a spec into a new folder, or in memory; this process trains, unless `executors` say otherwise."""
    executors = executors if executors is not None else ExecutorCache()
    task = executors.load_task(spec, task)
    settings, method = resolve_spec(spec, task)
    executors.check(spec)
    if out is None:
        return go(spec, task, MemoryRecorder(), executors, progress, stopped)
    manifest = {**spec.manifest(task, settings, method), "privacy": describe_privacy(method, settings)}
    with RunFolder.create(out, manifest, overwrite=overwrite) as folder:
        folder.log("started", method=spec.method_name, seed=spec.seed)
        result = go(spec, task, folder, executors, progress, stopped)
        folder.update_manifest(kernels=spec.kernels())  # now it is known which of them there were
        return result


def resume(
    out: Path | str,
    *,
    task: Task | None = None,
    method: Method | None = None,
    workers: int | None = 1,
    executor: str | None = None,
    address: str | None = None,
    backend: str | None = None,
    device: str | None = None,
    budget_s: float | None = None,
    target: float | None = None,
    track: Sequence[Any] = (),
    trust: bool = False,
    progress: Tell = lambda _: None,
    stopped: Stop = lambda: False,
) -> RunResult:
    """Go on with a run from its last checkpoint; a run that is done is returned as it is, unless a new `budget_s`
    (with a `target` accuracy to stop at) carries it further. `backend` and `device` are the run's own, unless told. A
    `task` or `method` of your own has to be given again. Code that the folder names is run only if you started a run
    with it before, or `trust` the folder."""
    resources = Resources(workers=workers, executor=executor, address=address, track=tuple(track))
    with ExecutorCache(resources) as executors:
        asked = {"backend": backend, "device": device, "budget_s": budget_s, "target": target}
        changes = {name: value for name, value in asked.items() if value is not None}
        return carry_on(
            Path(out), executors, changes, task=task, method=method, trusted=EVERYTHING if trust else (),
            progress=progress, stopped=stopped,
        )  # fmt: skip


def carry_on(
    out: Path,
    executors: ExecutorCache,
    changes: Mapping[str, Any],
    *,
    task: Task | None = None,
    method: Method | None = None,
    trusted: Collection[str] | None = (),
    progress: Tell = lambda _: None,
    stopped: Stop = lambda: False,
) -> RunResult:
    """Go on with the run in a folder after these changes to its spec. Of the code that the folder names (`code_of`),
    only what is `trusted`, or was started here before, is run."""
    with RunFolder.open(out) as folder:
        spec = replace(from_manifest(folder.manifest, task, method), **changes)
        check_trusted(code_of(spec), trusted)
        executors.check(spec)
        folder.update_manifest(**spec.described(), status="running", why=None)
        folder.log("resumed", **changes)
        return go(spec, executors.load_task(spec, task), folder, executors, progress, stopped)


def go(
    spec: RunSpec, task: Task, recorder: Recorder, executors: ExecutorCache, progress: Tell, stopped: Stop
) -> RunResult:
    """The run itself, with its end written down whatever it is."""
    recorder = tracked(recorder, executors.resources.track, lambda: spec.manifest(task, *resolve_spec(spec, task)))
    try:
        return _to_its_end(spec, task, recorder, executors, progress, stopped)
    except FedBalancerError as error:
        _note_end(recorder, "failed", str(error))
        raise
    except KeyboardInterrupt:
        _note_end(recorder, "stopped", "interrupted")
        raise
    except OSError as error:
        _note_end(recorder, "failed", f"{type(error).__name__}: {error}")
        raise RunFolderError(_broken_off(error, recorder.path)) from error
    except BaseException as error:
        _note_end(recorder, "failed", f"{type(error).__name__}: {error}")
        raise


def _note_end(recorder: Recorder, status: str, why: str) -> None:
    """Write down that a run ended badly, if that is still possible: what ended it may be the disk."""
    with suppress(OSError):
        recorder.finish(status, why)


def _broken_off(error: OSError, folder: Path | None) -> str:
    """In words: a disk that is full, read-only, broken or gone, and what can be done."""
    if folder is None:
        return f"the run broke off: {error}"
    if not folder.is_dir():
        return f"the run broke off: {error}; its folder {folder} is gone, so it has to start again"
    return (
        f"the run broke off: {error}; its checkpoints are whole: once {folder} can be written again, go on with: "
        f"fedbalancer resume {shlex.quote(str(folder))}"
    )


def _to_its_end(
    spec: RunSpec, task: Task, recorder: Recorder, executors: ExecutorCache, progress: Tell, stopped: Stop
) -> RunResult:
    with one_thread(spec.timing_only):
        simulation = build(spec, task, executors.executor(spec, task))
        loop = RunLoop(simulation, recorder, progress)
        finished = loop.go(stopped)
    status, why = ("done", SPENT if loop.is_spent else None) if finished else ("stopped", "interrupted")
    if (spending := simulation.engine.spending) is not None:
        clients = loop.state.ledger.clients
        recorder.record_privacy(privacy_rows(simulation.method, simulation.settings, clients, spending.releases))
    model = simulation.server.model(loop.state)
    recorder.finish(status, why, model, simulation.executor.layout)
    later = {"population": recorder.population(), "classes": recorder.classes(), "privacy": recorder.privacy()}
    found = {**recorder.frames(), **later}
    run = {"task": task.name, "method": spec.method_name, "seed": spec.seed}
    return RunResult(status=status, folder=recorder.path, weights=model, **found, **run)  # type: ignore[arg-type]
