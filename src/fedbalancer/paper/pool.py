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
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedbalancer.client.flat import build
from fedbalancer.paper.request import Request, Stopped
from fedbalancer.reporting.results import StoredRun, load_run
from fedbalancer.runs.compare import apart, run_folder, shared_results
from fedbalancer.runs.events import goes_further
from fedbalancer.runs.jobs import Job, JobEvent, JobPool
from fedbalancer.runs.plan import ComparisonPlan
from fedbalancer.runs.simulation import resolve_spec
from fedbalancer.runs.spec import RunSpec
from fedbalancer.store import COMPARISON, ComparisonFile
from fedbalancer.store.contents import make_folder

Listen = Callable[[JobEvent], None]
Key = tuple[str, int]
Targets = Callable[[], Mapping[Key, float]]
"""Asked when all runs are there: which of them shall go on, and for which accuracy."""
SHARED, DAY_S = ".shared-", 24 * 3600.0
FOUND = "found"
"""Why a run is done that this command did not start."""


@dataclass(frozen=True, eq=False)
class TaskPool:
    """The runs of one task in the pool: `plan` is the comparison of all methods that the item wants."""

    request: Request
    plan: ComparisonPlan
    folder: Path
    _read: dict[Key, StoredRun] = field(default_factory=dict, repr=False)

    @classmethod
    def make(cls, request: Request, task: str, methods: Sequence[str]) -> TaskPool:
        """Check the task, the settings and all methods before anything runs."""
        plan = ComparisonPlan.make(request.spec(task), methods, request.seeds, request.extend, "fair")
        return cls(request, plan, request.runs / folder_name(plan))

    @cached_property
    def budgets_s(self) -> dict[int, float]:
        """The budget of every seed."""
        return self.plan.budgets_s

    def complete(self, unreached: Targets, listen: Listen, stopped: Callable[[], bool]) -> dict[Key, JobEvent]:
        """Make all runs that are missing or unfinished; then let those go on that `unreached` names, for the target it
        gives, up to `extend` budgets. Returns the last event of each run that was started."""
        make_folder(self.folder)
        self._describe()
        specs = list(self.specs.values())
        missing = [spec for spec in specs if not self._covered(spec)]
        for spec in specs:
            listen(JobEvent(spec.key, "waiting") if spec in missing else JobEvent(spec.key, "done", why=FOUND))
        side_by_side, each = self.request.resources.shared_out(max(len(missing), 1), self.request.jobs)
        with (
            _shared_results(self.folder) as results,
            JobPool(self.plan.own_task, side_by_side, replace(each, results=results)) as pool,
        ):
            jobs = [Job(spec, self._place(spec), changes={"budget_s": spec.budget_s}) for spec in missing]
            order = {spec.key: place for place, spec in enumerate(apart(missing, side_by_side))}
            outcomes = self._run(pool, sorted(jobs, key=lambda job: order[job.key]), listen, stopped)
            further = self._further(unreached())
            for job in further:
                listen(goes_further(job.key, self.stored(*job.key).curve, self._longer_s(job.spec.seed)))
            return outcomes | self._run(pool, further, listen, stopped)

    def _further(self, targets: Mapping[Key, float]) -> list[Job]:
        """The runs that are to go on; those that came to the end of the extension already rest."""
        jobs = []
        for (method, seed), target in targets.items():
            spec, longer_s = self.specs[method, seed], self._longer_s(seed)
            stored = self.stored(method, seed).curve
            if stored.status == "done" and stored.last_s < longer_s:
                jobs.append(Job(spec, self._place(spec), changes={"budget_s": longer_s, "target": target}))
        return jobs

    def _longer_s(self, seed: int) -> float:
        """How long a run may take to reach its target."""
        return self.plan.extend * self.budgets_s[seed]

    def stored(self, method: str, seed: int) -> StoredRun:
        """A run as far as it is there; read once, unless it goes on here."""
        if (method, seed) not in self._read:
            self._read[method, seed] = load_run(self._place(self.specs[method, seed]), method, seed)
        return self._read[method, seed]

    @cached_property
    def specs(self) -> dict[Key, RunSpec]:
        """All runs that are wanted, the same whichever item asks for them: with a grid of seconds, by whatever rule
        they are scored."""
        return {spec.key: spec for spec in self.plan.specs}

    def _place(self, spec: RunSpec) -> Path:
        return run_folder(self.folder, spec)

    def _covered(self, spec: RunSpec) -> bool:
        """Whether the run is done and came to its budget. One that is done but shorter is carried on."""
        curve = self.stored(*spec.key).curve
        return curve.status == "done" and curve.last_s >= (spec.budget_s or 0.0)

    def _run(
        self, pool: JobPool, jobs: Sequence[Job], listen: Listen, stopped: Callable[[], bool]
    ) -> dict[Key, JobEvent]:
        if not jobs:
            return {}
        outcomes = pool.run(jobs, listen, stopped)
        for key in outcomes:
            self._read.pop(key, None)
        if stopped() or any(event.kind == "stopped" for event in outcomes.values()):
            raise Stopped
        return outcomes

    def _describe(self) -> None:
        """comparison.json of the folder, with all methods and seeds that were ever asked for."""
        wanted = self.plan.file
        if (self.folder / COMPARISON).is_file():
            known = ComparisonFile.read(self.folder)
            wanted = replace(
                wanted,
                methods=tuple(dict.fromkeys([*known.methods, *wanted.methods])),
                seeds=tuple(sorted({*known.seeds, *wanted.seeds})),
                budgets_s={**known.budgets_s, **wanted.budgets_s},
            )
        wanted.write(self.folder)


@contextmanager
def _shared_results(folder: Path) -> Iterator[Path | None]:
    """A folder of this command's own for what its runs have in common: another command may be at work on the same task.
    What a killed one left behind goes after a day."""
    for left in folder.glob(f"{SHARED}*"):
        if time.time() - left.stat().st_mtime > DAY_S:
            shutil.rmtree(left, ignore_errors=True)
    mine = Path(tempfile.mkdtemp(prefix=SHARED, dir=folder))
    try:
        with shared_results(mine) as results:
            yield results
    finally:
        shutil.rmtree(mine, ignore_errors=True)


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
