"""The pool: one folder for all runs of all items. A run that is there is never made again.

    runs/paper/har-small-1a2b3c4d/METHOD/seed-N

A folder of the pool is that of a comparison (`fedbalancer report` reads it), and all its runs have one task, scale and
settings in common. Its name ends in a hash of these: of what differs from the defaults, of the clients' sizes and of
the size of the model, so that a task that was changed gets a new folder and no run of the old one is taken for its own.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedbalancer.client.flat import build
from fedbalancer.paper.request import Request, Stopped
from fedbalancer.report.folders import StoredRun, load_run
from fedbalancer.runs.compare import run_folder
from fedbalancer.runs.jobs import Job, JobEvent, JobPool
from fedbalancer.runs.plan import ComparisonPlan
from fedbalancer.runs.simulation import resolve_spec
from fedbalancer.runs.spec import RunSpec
from fedbalancer.store import COMPARISON, ComparisonFile, status_of
from fedbalancer.store.contents import make_folder

Listen = Callable[[JobEvent], None]
Key = tuple[str, int]


@dataclass(frozen=True, eq=False)
class TaskPool:
    """The runs of one task in the pool: `plan` is the comparison of all methods that the item wants."""

    request: Request
    plan: ComparisonPlan
    folder: Path

    @classmethod
    def make(cls, request: Request, task: str, methods: Sequence[str]) -> TaskPool:
        """Check the task, the settings and all methods before anything runs."""
        plan = ComparisonPlan.make(request.spec(task), methods, request.seeds, request.extend)
        return cls(request, plan, request.runs / folder_name(plan))

    @cached_property
    def budgets_s(self) -> dict[int, float]:
        """The budget of every seed."""
        return self.plan.budgets_s

    def run(self, methods: Sequence[str], listen: Listen, stopped: Callable[[], bool]) -> dict[Key, JobEvent]:
        """Make the runs of these methods that are missing or unfinished. The last event of each that was started."""
        specs = [self._spec(method, seed) for method in methods for seed in self.plan.seeds]
        jobs = [Job(spec, self.place(spec)) for spec in specs if not self._covered(spec)]
        for spec in specs:
            if self._covered(spec):
                listen(JobEvent(spec.key, "done", why="found"))
        self._describe(methods)
        return self._carried_out(jobs, listen, stopped)

    def carry_further(
        self, targets: dict[Key, float], listen: Listen, stopped: Callable[[], bool]
    ) -> dict[Key, JobEvent]:
        """Let these runs go on for their targets, up to `extend` budgets; those that came so far already rest."""
        jobs = []
        for (method, seed), target in targets.items():
            spec, longer_s = self._spec(method, seed), self.plan.extend * self.budgets_s[seed]
            if self.stored(method, seed).curve.last_s < longer_s:
                jobs.append(Job(spec, self.place(spec), changes={"budget_s": longer_s, "target": target}))
        return self._carried_out(jobs, listen, stopped)

    def stored(self, method: str, seed: int) -> StoredRun:
        """A run as far as it is there."""
        return load_run(run_folder(self.folder, self._spec(method, seed)), method, seed)

    def place(self, spec: RunSpec) -> Path:
        return run_folder(self.folder, spec)

    def _spec(self, method: str, seed: int) -> RunSpec:
        return replace(self.plan.base, method=method, seed=seed, budget_s=self.budgets_s[seed])

    def _covered(self, spec: RunSpec) -> bool:
        """Whether the run is done and came to its budget. One that is done but shorter is carried on."""
        place = self.place(spec)
        return status_of(place) == "done" and load_run(place).curve.last_s >= (spec.budget_s or 0.0)

    def _carried_out(self, jobs: Sequence[Job], listen: Listen, stopped: Callable[[], bool]) -> dict[Key, JobEvent]:
        if not jobs:
            return {}
        side_by_side, each = self.request.resources.shared_out(len(jobs), self.request.jobs)
        longer = [job if job.changes else replace(job, changes={"budget_s": job.spec.budget_s}) for job in jobs]
        with JobPool(self.plan.own_task, side_by_side, each) as pool:
            outcomes = pool.run(interleaved(longer, side_by_side), listen, stopped)
        if stopped() or any(event.kind == "stopped" for event in outcomes.values()):
            raise Stopped
        return outcomes

    def _describe(self, methods: Iterable[str]) -> None:
        """comparison.json of the folder, with all methods and seeds that were ever asked for."""
        make_folder(self.folder)
        wanted = self.plan.file
        if (self.folder / COMPARISON).is_file():
            known = ComparisonFile.read(self.folder)
            wanted = replace(
                wanted,
                methods=tuple(dict.fromkeys([*known.methods, *methods])),
                seeds=tuple(sorted({*known.seeds, *wanted.seeds})),
                budgets_s={**known.budgets_s, **wanted.budgets_s},
            )
        wanted.write(self.folder)


def interleaved(jobs: Sequence[Job], side_by_side: int) -> list[Job]:
    """The jobs in an order in which those that run side by side are of different seeds, and the methods of one seed,
    which may share their first rounds, follow one another.

    >>> spec = RunSpec(task="watch")
    >>> jobs = [Job(replace(spec, method=m, seed=s), Path()) for m in "ab" for s in range(3)]
    >>> [job.key for job in interleaved(jobs, 2)]
    [('a', 0), ('a', 1), ('b', 0), ('b', 1), ('a', 2), ('b', 2)]
    """
    by_seed: dict[int, list[Job]] = {}
    for job in jobs:
        by_seed.setdefault(job.spec.seed, []).append(job)
    ordered: list[Job] = []
    waiting = list(by_seed.values())
    lanes: list[list[Job]] = [[] for _ in range(side_by_side)]
    while waiting or any(lanes):
        lanes = [lane or (waiting.pop(0) if waiting else []) for lane in lanes]
        ordered += [lane.pop(0) for lane in lanes if lane]
    return ordered


def folder_name(plan: ComparisonPlan) -> str:
    """The name of a task's folder in the pool."""
    spec, task = plan.base, plan.task
    settings, _ = resolve_spec(spec, task)
    common: dict[str, Any] = {
        "task": _name(spec), "scale": spec.scale, "variant": task.variant, "engine": spec.engine,
        "device": spec.device, "settings": settings.model_dump(mode="json", exclude_defaults=True),
        "clients": sorted(task.sizes.items()),
        "parameters": sum(tensor.numel() for tensor in build(task.model).parameters()),
    }  # fmt: skip
    digest = hashlib.sha256(json.dumps(common, sort_keys=True, default=str).encode()).hexdigest()[:8]
    return f"{slug(_name(spec))}-{spec.scale}-{digest}"


def slug(name: str) -> str:
    """A name as a folder can have it.

    >>> slug("my/tasks.toml"), slug("../<b>")
    ('my-tasks.toml', 'b')
    """
    return re.sub(r"[^\w.]+", "-", name).strip("-.") or "task"


def _name(spec: RunSpec) -> str:
    return spec.task if isinstance(spec.task, str) else spec.task.name
