"""Methods x seeds on one task, by the paper's rules.

Every method gets, per seed, the simulated seconds that FedAvg+1T needs for the task's rounds. The target is the final
accuracy of the best FedAvg variant. A method that has not reached it within the budget runs on, up to `extend` times
the budget, because its time-to-accuracy is wanted; its final accuracy is the one within the budget all the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

from fedbalancer.errors import BadSetting, FedBalancerError, RunFolderError
from fedbalancer.files import write_json
from fedbalancer.methods import Method
from fedbalancer.processes import usable_cores
from fedbalancer.report import Comparison, score_folder, write_report
from fedbalancer.runs.jobs import Job, JobEvent, JobPool, is_run, status
from fedbalancer.runs.spec import OLD_ENGINE, RunSpec, whole_path
from fedbalancer.runs.workforce import Hands, Workforce
from fedbalancer.runs.world import resolve_spec, timed_clock_s
from fedbalancer.tasks import Task, load_task

DEFAULT_METHODS = (
    "fedavg+1t", "fedavg+2t", "fedavg+spc", "fedavg+wfa", "prox+1t", "prox+2t", "sampleselection", "fedbalancer",
)  # fmt: skip
BUDGET_METHOD = "fedavg+1t"
FILE = "comparison.json"


@dataclass(frozen=True)
class ComparisonRun:
    """A comparison that was run: its scores, its folder, and the last event of every run."""

    comparison: Comparison
    folder: Path
    outcomes: Mapping[tuple[str, int], JobEvent]

    @property
    def failed(self) -> list[JobEvent]:
        return [event for event in self.outcomes.values() if event.kind == "failed"]

    @property
    def stopped(self) -> bool:
        return any(event.kind == "stopped" for event in self.outcomes.values())

    def scored(self) -> Comparison:
        """The scores, unless so many runs failed that there are none: then an error that names those and why."""
        if self.failed and not self.comparison.seeds:
            causes = "; ".join(f"{event.key[0]} seed {event.key[1]} failed: {event.why}" for event in self.failed)
            raise FedBalancerError(f"nothing can be scored: {causes}")
        return self.comparison


def compare(
    task: str | Task,
    methods: Sequence[str | Method] = DEFAULT_METHODS,
    seeds: int | Sequence[int] = 3,
    *,
    scale: str = "small",
    users: int | None = None,
    settings: Mapping[str, Any] | None = None,
    rounds: int | None = None,
    extend: float = 2.0,
    out: Path | str | None = None,
    overwrite: bool = False,
    jobs: int | None = None,
    workers: int | None = None,
    executor: str | None = None,
    address: str | None = None,
    engine: str = "fast",
    device: str = "cpu",
    variant: str | None = None,
) -> Comparison:
    """Compare methods and return the scores; with `out` the folder keeps every run and the report.

    Runs that fail are left out of the scores, whose `notes` name them; if nothing is left it is an error.
    `jobs` runs go side by side, each with `workers` that train its clients; unless told, they share the cores.
    """
    plan = ComparisonPlan.make(
        task, methods, seeds, scale, users, settings or {}, rounds, extend, variant, engine, device
    )
    hands = Hands(jobs, workers, executor, address)
    if out is not None:
        return run_comparison(plan, Path(out), overwrite=overwrite, hands=hands).scored()
    with TemporaryDirectory(prefix="fedbalancer-") as folder:
        return run_comparison(plan, Path(folder) / "comparison", hands=hands, pages=False).scored()


@dataclass(frozen=True)
class ComparisonPlan:
    """A comparison that has been checked and can start."""

    task: Task
    source: str | None
    methods: tuple[str | Method, ...]
    seeds: tuple[int, ...]
    scale: str
    users: int | None
    overrides: Mapping[str, Any]
    rounds: int
    extend: float
    variant: str | None = None
    engine: str = "fast"
    device: str = "cpu"

    @classmethod
    def make(
        cls,
        task: str | Task,
        methods: Sequence[str | Method],
        seeds: int | Sequence[int],
        scale: str = "small",
        users: int | None = None,
        overrides: Mapping[str, Any] | None = None,
        rounds: int | None = None,
        extend: float = 2.0,
        variant: str | None = None,
        engine: str = "fast",
        device: str = "cpu",
    ) -> ComparisonPlan:
        """Check everything that can be wrong before anything runs."""
        numbers = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
        names = [method if isinstance(method, str) else method.name for method in methods]
        if not numbers or not names:
            raise BadSetting("a comparison needs at least one method and one seed")
        if len(set(names)) < len(names):
            raise BadSetting(f"methods are named twice: {', '.join(names)}")
        if not 1 <= extend <= 1000:
            raise BadSetting(f"extend = {extend} must be from 1 to 1000 budgets")
        loaded = load_task(task, scale=scale, users=users, variant=variant) if isinstance(task, str) else task
        merged = {**(overrides or {}), **({"rounds": rounds} if rounds is not None else {})}
        for method in methods:
            spec = RunSpec(task, method, numbers[0], scale, users, merged, engine=engine, device=device)
            settings, _ = resolve_spec(spec, loaded)
        named = whole_path(task)
        source = named if isinstance(named, str) else None
        return cls(
            loaded, source, tuple(methods), numbers, scale, users, merged, settings.rounds, extend, variant, engine,
            device,
        )  # fmt: skip

    def spec(self, method: str | Method, seed: int, budget_s: float | None = None) -> RunSpec:
        """The spec of one run."""
        source = self.source or self.task
        return RunSpec(
            source, method, seed, self.scale, self.users, self.overrides, budget_s=budget_s, variant=self.variant,
            engine=self.engine, device=self.device,
        )  # fmt: skip

    def budgets_s(self) -> dict[int, float]:
        """FedAvg+1T's clock after the task's rounds, per seed. Its rounds do not depend on the training, so the clock
        alone is run."""
        return {seed: timed_clock_s(self.spec(BUDGET_METHOD, seed), self.task, self.rounds) for seed in self.seeds}

    def document(self, budgets_s: Mapping[int, float]) -> dict[str, Any]:
        """comparison.json."""
        return {
            "task": self.task.name,
            "variant": self.task.variant,
            "source": self.source,
            "scale": self.scale,
            "users": self.users,
            "variant_asked": self.variant,
            "methods": [method if isinstance(method, str) else method.name for method in self.methods],
            "methods_are_named": all(isinstance(method, str) for method in self.methods),
            "seeds": list(self.seeds),
            "rounds": self.rounds,
            "extend": self.extend,
            "overrides": dict(self.overrides),
            "engine": self.engine,
            "device": self.device,
            "budgets_s": {str(seed): budget_s for seed, budget_s in budgets_s.items()},
        }


def run_comparison(
    plan: ComparisonPlan,
    out: Path,
    *,
    overwrite: bool = False,
    resumed: bool = False,
    hands: Hands | None = None,
    pages: bool = True,
    listen: Callable[[JobEvent], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> ComparisonRun:
    """Run or go on with a comparison in `out`."""
    if not resumed:
        _check_free(out, overwrite)
    processes, workforce = (hands or Hands()).shared_out(len(plan.methods) * len(plan.seeds), usable_cores())
    Workforce(**workforce).check(plan.spec(plan.methods[0], plan.seeds[0]))
    budgets_s = plan.budgets_s()
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / FILE, plan.document(budgets_s))
    outcomes: dict[tuple[str, int], JobEvent] = {}
    with JobPool(plan.task if plan.source is None else None, processes, workforce) as pool:
        first = _jobs(plan, out, budgets_s, overwrite=overwrite, resumed=resumed)
        outcomes |= pool.run(first, listen, stopped)
        further = [] if stopped() else _extensions(plan, out, budgets_s)
        outcomes |= pool.run(further, listen, stopped)
    comparison = write_report(out).comparison if pages else score_folder(out)
    assert comparison is not None  # only a single run has no scores
    return ComparisonRun(comparison, out, outcomes)


def resume_comparison(
    out: Path, *, engine: str | None = None, device: str | None = None, **options: Any
) -> ComparisonRun:
    """Go on with a comparison from its folder; `engine` and `device` are those that it began with, unless told."""
    document = read_comparison(out)
    if document["source"] is None or not document["methods_are_named"]:
        raise RunFolderError(
            f"the comparison in {out} was started from Python with its own task or methods; run it again from there"
        )
    plan = ComparisonPlan.make(
        document["source"],
        document["methods"],
        document["seeds"],
        document["scale"],
        document["users"],
        document["overrides"],
        document["rounds"],
        document["extend"],
        document["variant_asked"],
        engine or document.get("engine", OLD_ENGINE),
        device or document.get("device", "cpu"),
    )
    return run_comparison(plan, out, resumed=True, **options)


def read_comparison(out: Path) -> dict[str, Any]:
    """comparison.json of a folder."""
    try:
        document: dict[str, Any] = json.loads((out / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunFolderError(f"{out} holds no comparison: {FILE} is missing") from error
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{out / FILE} cannot be read: {error}") from error
    return document


def run_folder(out: Path, method: str, seed: int) -> Path:
    """Where a comparison keeps one of its runs."""
    return out / method / f"seed-{seed}"


def _jobs(
    plan: ComparisonPlan, out: Path, budgets_s: Mapping[int, float], *, overwrite: bool, resumed: bool
) -> list[Job]:
    jobs = []
    # Seeds outside, so that a comparison that is stopped early has whole seeds.
    for seed in plan.seeds:
        for method in plan.methods:
            spec = plan.spec(method, seed, budgets_s[seed])
            folder = run_folder(out, spec.method_name, seed)
            if not (resumed and status(folder) == "done"):
                jobs.append(Job(spec, folder, overwrite=overwrite and not resumed))
    return jobs


def _extensions(plan: ComparisonPlan, out: Path, budgets_s: Mapping[int, float]) -> list[Job]:
    """Finished runs that did not reach their seed's target within the budget, to be carried on."""
    if plan.extend <= 1:
        return []
    targets = {seed.seed: seed.target for seed in score_folder(out).seeds}
    jobs = []
    for seed in plan.seeds:
        for method in plan.methods:
            spec = plan.spec(method, seed)
            folder = run_folder(out, spec.method_name, seed)
            if seed in targets and status(folder) == "done" and not _reached(folder, targets[seed]):
                jobs.append(Job(spec, folder, extend=(plan.extend * budgets_s[seed], targets[seed])))
    return jobs


def _reached(folder: Path, target: float) -> bool:
    evals = pl.read_parquet(folder / "evals.parquet")
    return bool((evals["accuracy"] >= target).any())


def _check_free(out: Path, overwrite: bool) -> None:
    if out.is_file():
        raise RunFolderError(f"{out} is a file; give a folder with --out")
    if not out.is_dir() or not any(out.iterdir()):
        return
    if (out / FILE).is_file() and overwrite:
        return
    if (out / FILE).is_file():
        raise RunFolderError(f"{out} already holds a comparison; add --overwrite, or type: fedbalancer resume {out}")
    kind = "a run" if is_run(out) else "other files"
    raise RunFolderError(f"{out} holds {kind}; give another folder with --out")
