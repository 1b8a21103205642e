"""The pool: one folder with the runs of all items, so that no run is executed twice.

    runs/paper/har-small-1a2b3c4d/METHOD/seed-N

A folder of the pool is a comparison folder (`fedbalancer report` reads it) whose runs share a task, scale and settings.
Its name ends in a hash of these: settings that differ from the defaults, the sizes of the clients, and the size of the
model. A changed task therefore gets a new folder.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedbalancer.experiments.comparison import interleave_by_seed, run_folder, shared_results
from fedbalancer.experiments.jobs import Job, JobPool
from fedbalancer.experiments.plan import ComparisonPlan
from fedbalancer.experiments.progress import JobEvent, extension_event
from fedbalancer.experiments.simulation import resolve_spec
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.paper.item import Request, Stopped
from fedbalancer.reporting.results import StoredRun, load_run
from fedbalancer.store import COMPARISON, ComparisonFile
from fedbalancer.store.contents import make_folder
from fedbalancer.training.tensors import build_module

Key = tuple[str, int]
Targets = Callable[[], Mapping[Key, float]]
"""Function that returns the runs to extend, with the accuracy each has to reach; called when all runs exist."""
SHARED, DAY_S = ".shared-", 24 * 3600.0
REUSED = "reused"
"""Reason of a "done" event for a run that existed before the command."""


@dataclass(frozen=True, eq=False)
class TaskPool:
    """The runs of one task in the pool.

    Args:
        request: The options of the command.
        plan: The comparison of all methods that the item needs.
        folder: The folder of these runs in the pool.
    """

    request: Request
    plan: ComparisonPlan
    folder: Path
    _cache: dict[Key, StoredRun] = field(default_factory=dict, repr=False)

    @classmethod
    def make(cls, request: Request, task: str, methods: Sequence[str]) -> TaskPool:
        """Validate the task, the settings and all methods before anything runs.

        Args:
            request: The request.
            task: Name of the task.
            methods: Names of the methods.

        Raises:
            FedBalancerError: If the task, a setting or a method is invalid.
        """
        plan = ComparisonPlan.make(request.spec(task), methods, request.seeds, request.extend, "fair")
        return cls(request, plan, request.runs / folder_name(plan))

    @cached_property
    def budgets_s(self) -> dict[int, float]:
        """Time budget by seed."""
        return self.plan.budgets_s

    def complete(
        self, unreached: Targets, listen: Callable[[JobEvent], None], stopped: Callable[[], bool]
    ) -> dict[Key, JobEvent]:
        """Execute all missing or unfinished runs, then extend those that did not reach their target.

        Args:
            unreached: Function that returns the runs to extend and their targets; a run is extended up to
                `request.extend` budgets.
            listen: Callback for events.
            stopped: Function that returns whether to stop.

        Returns:
            The last event of each run that was started.

        Raises:
            Stopped: If the user asked to stop.
        """
        make_folder(self.folder)
        self._write_comparison()
        specs = list(self.specs.values())
        missing = [spec for spec in specs if not self._is_complete(spec)]
        for spec in specs:
            listen(JobEvent(spec.key, "waiting") if spec in missing else JobEvent(spec.key, "done", why=REUSED))
        count, resources = self.request.resources.divide(max(len(missing), 1), self.request.jobs)
        with (
            _shared_results(self.folder) as results,
            JobPool(self.plan.own_task, count, replace(resources, results=results)) as pool,
        ):
            jobs = [Job(spec, self._run_folder(spec), changes={"budget_s": spec.budget_s}) for spec in missing]
            order = {spec.key: place for place, spec in enumerate(interleave_by_seed(missing, count))}
            outcomes = self._run(pool, sorted(jobs, key=lambda job: order[job.key]), listen, stopped)
            extensions = self._extensions(unreached())
            for job in extensions:
                listen(extension_event(job.key, self.read_run(*job.key).curve, self._extended_s(job.spec.seed)))
            return outcomes | self._run(pool, extensions, listen, stopped)

    def read_run(self, method: str, seed: int) -> StoredRun:
        """Load a run as far as it exists, from memory unless it ran since."""
        if (method, seed) not in self._cache:
            self._cache[method, seed] = load_run(self._run_folder(self.specs[method, seed]), method, seed)
        return self._cache[method, seed]

    @cached_property
    def specs(self) -> dict[Key, RunSpec]:
        """All runs, with evaluations on a grid of seconds whatever the rule, so that items share them."""
        return {spec.key: spec for spec in self.plan.specs}

    def _extensions(self, targets: Mapping[Key, float]) -> list[Job]:
        """Return the runs to extend, without those that already cover the extended budget."""
        jobs = []
        for (method, seed), target in targets.items():
            spec, extended_s = self.specs[method, seed], self._extended_s(seed)
            curve = self.read_run(method, seed).curve
            if curve.status == "done" and curve.last_s < extended_s:
                jobs.append(Job(spec, self._run_folder(spec), changes={"budget_s": extended_s, "target": target}))
        return jobs

    def _extended_s(self, seed: int) -> float:
        return self.plan.extend * self.budgets_s[seed]

    def _run_folder(self, spec: RunSpec) -> Path:
        return run_folder(self.folder, spec)

    def _is_complete(self, spec: RunSpec) -> bool:
        """Return whether the run is done and covers its budget; a shorter run is continued."""
        curve = self.read_run(*spec.key).curve
        return curve.status == "done" and curve.last_s >= (spec.budget_s or 0.0)

    def _run(
        self, pool: JobPool, jobs: Sequence[Job], listen: Callable[[JobEvent], None], stopped: Callable[[], bool]
    ) -> dict[Key, JobEvent]:
        if not jobs:
            return {}
        outcomes = pool.run(jobs, listen, stopped)
        for key in outcomes:
            self._cache.pop(key, None)
        if stopped() or any(event.kind == "stopped" for event in outcomes.values()):
            raise Stopped
        return outcomes

    def _write_comparison(self) -> None:
        """Write comparison.json with all methods and seeds that were ever requested."""
        comparison = self.plan.file
        if (self.folder / COMPARISON).is_file():
            known = ComparisonFile.read(self.folder)
            comparison = replace(
                comparison,
                methods=tuple(dict.fromkeys([*known.methods, *comparison.methods])),
                seeds=tuple(sorted({*known.seeds, *comparison.seeds})),
                budgets_s={**known.budgets_s, **comparison.budgets_s},
            )
        comparison.write(self.folder)


@contextmanager
def _shared_results(folder: Path) -> Iterator[Path | None]:
    """Provide a temporary folder for results that the runs of this command share.

    Other commands may work on the same task at the same time. Folders that a killed command left are removed after a
    day.
    """
    for left in folder.glob(f"{SHARED}*"):
        if time.time() - left.stat().st_mtime > DAY_S:
            shutil.rmtree(left, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=SHARED, dir=folder))
    try:
        with shared_results(temporary) as results:
            yield results
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def folder_name(plan: ComparisonPlan) -> str:
    """Return the name of a task's folder in the pool."""
    spec, task = plan.base, plan.task
    settings, _ = resolve_spec(spec, task)
    common: dict[str, Any] = {
        "task": _task_name(spec), "scale": spec.scale, "variant": task.variant, "backend": spec.backend,
        "device": spec.device, "settings": settings.model_dump(mode="json", exclude_defaults=True),
        "clients": sorted(task.sizes.items()),
        "parameters": sum(tensor.numel() for tensor in build_module(task.model).parameters()),
    }  # fmt: skip
    digest = hashlib.sha256(json.dumps(common, sort_keys=True, default=str).encode()).hexdigest()[:8]
    return f"{make_slug(_task_name(spec))}-{spec.scale}-{digest}"


def make_slug(name: str) -> str:
    """Convert a name to a folder name.

    Example:
        >>> make_slug("my/tasks.toml"), make_slug("../<b>")
        ('my-tasks.toml', 'b')
    """
    return re.sub(r"[^\w.]+", "-", name).strip("-.") or "task"


def _task_name(spec: RunSpec) -> str:
    return spec.task if isinstance(spec.task, str) else spec.task.name
