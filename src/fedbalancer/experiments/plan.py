"""The plan of a comparison: methods and seeds on one task, checked before anything runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.metrics import Metric
from fedbalancer.data import Task
from fedbalancer.experiments.simulation import check_settings, resolve_spec, simulate_clock_s
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.experiments.trust import check_trusted, code_of
from fedbalancer.methods.names import canonical_name
from fedbalancer.methods.table import Method
from fedbalancer.reporting.rule import GRID, Rule, check_rule
from fedbalancer.reporting.scores import check_targets
from fedbalancer.store import ComparisonFile
from fedbalancer.store.comparison import TARGETS

BUDGET_METHOD = "fedavg+1t"


@dataclass(frozen=True, kw_only=True)
class ComparisonPlan:
    """A comparison that can start.

    Args:
        base: What all runs have in common.
        task: The loaded task.
        methods: The methods, in the order of the table.
        seeds: The seeds.
        rounds: The number of FedAvg+1T's rounds that determines the budgets.
        extend: Maximum number of budgets that a method may take to reach the target.
        rule: The rule by which runs are evaluated and scored: fair or paper.
        targets: Shares of the reference's final accuracy, the main one first.
    """

    base: RunSpec
    task: Task
    methods: tuple[str | Method, ...]
    seeds: tuple[int, ...]
    rounds: int
    extend: float
    rule: Rule = "fair"
    targets: tuple[float, ...] = TARGETS

    @classmethod
    def make(
        cls,
        base: RunSpec,
        methods: Sequence[str | Method],
        seeds: int | Sequence[int] = 3,
        extend: float = 2.0,
        rule: str = "fair",
        targets: Sequence[float] = TARGETS,
        *,
        varied: Sequence[str] = (),
    ) -> ComparisonPlan:
        """Check the options of a comparison, load its task, and create the plan.

        Args:
            base: What all runs have in common. Its rounds determine the budgets.
            methods: Method names or objects.
            seeds: Number of seeds, starting at 0, or the seeds themselves.
            extend: Maximum number of budgets that a method may take to reach the target.
            rule: fair or paper.
            targets: Shares of the reference's final accuracy, the main one first.
            varied: Further methods that run with the same settings, in a sweep.

        Raises:
            BadSetting: If an option is invalid.
            UnknownName: If a method is unknown.
        """
        numbers = seed_numbers(seeds)
        methods = [canonical_name(method) if isinstance(method, str) else method for method in methods]
        names = [method if isinstance(method, str) else method.name for method in methods]
        if not numbers or not names:
            raise BadSetting("a comparison needs at least one method and one seed")
        if len(set(names)) < len(names):
            raise BadSetting(f"a method appears twice: {', '.join(names)}")
        if not 1 <= extend <= 1000:
            raise BadSetting(f"extend = {extend} must be a number of budgets from 1 to 1000")
        rounds = {} if base.rounds is None else {"rounds": base.rounds}
        base = replace(base, method=methods[0], rounds=None, settings={**base.overrides, **rounds})
        task = base.load_task()
        base = base.with_devices_of(task)
        check_settings([replace(base, method=method) for method in (*methods, *varied)], task)
        settings, _ = resolve_spec(base, task)
        return cls(
            base=base, task=task, methods=tuple(methods), seeds=numbers, rounds=settings.rounds, extend=extend,
            rule=check_rule(rule), targets=check_targets(targets),
        )  # fmt: skip

    @classmethod
    def read(cls, folder: Path, trusted: Collection[str] | None = (), **changes: str | None) -> ComparisonPlan:
        """Read the plan of the comparison in a folder.

        Args:
            folder: The folder of the comparison.
            trusted: Code (`code_of`) that may run besides code with which the user started a run before; None for all.
            **changes: Changes to the spec of all runs; None values are ignored.
        """
        written = ComparisonFile.read(folder)
        requested = {name: value for name, value in changes.items() if value is not None}
        base = RunSpec.from_json({**written.spec, **requested})
        check_trusted(code_of(base, written.methods), trusted)
        return cls.make(base, written.methods, written.seeds, written.extend, written.rule, written.targets)

    @property
    def specs(self) -> list[RunSpec]:
        """The specs of all runs, seed by seed, so that a comparison that is stopped early has complete seeds."""
        return [
            replace(self.base, method=method, seed=seed, budget_s=self.budgets_s[seed], settings=self._settings(seed))
            for seed in self.seeds
            for method in self.methods
        ]

    def _settings(self, seed: int) -> dict[str, Any]:
        grid = {"eval_every_s": self.budgets_s[seed] / GRID} if self.rule == "fair" else {}
        return {**grid, **self.base.overrides}

    @property
    def method_names(self) -> tuple[str, ...]:
        """The names of the methods."""
        return tuple(method if isinstance(method, str) else method.name for method in self.methods)

    @property
    def own_task(self) -> Task | None:
        """The task, if it is an object that other processes cannot load by name."""
        return None if isinstance(self.base.task, str) else self.task

    @cached_property
    def budgets_s(self) -> dict[int, float]:
        """FedAvg+1T's simulated seconds after the task's rounds, by seed. They do not depend on training, so only the
        clock is simulated."""
        timed = replace(self.base, method=BUDGET_METHOD)
        return {seed: simulate_clock_s(replace(timed, seed=seed), self.task, self.rounds) for seed in self.seeds}

    @property
    def metric(self) -> Metric:
        """The metric of targets and scores."""
        return self.base.metric(self.task)

    @property
    def file(self) -> ComparisonFile:
        """The content of comparison.json."""
        named = (
            self.own_task is None
            and not self.base.has_device_object
            and all(isinstance(method, str) for method in self.methods)
        )
        return ComparisonFile(
            methods=self.method_names,
            seeds=self.seeds,
            budgets_s=self.budgets_s,
            task=self.task.name,
            variant=self.task.variant,
            scale=self.base.scale,
            rounds=self.rounds,
            extend=self.extend,
            rule=self.rule,
            targets=self.targets,
            metric=self.metric.to_json(),
            spec=self.base.to_json() if named else {},
        )


def seed_numbers(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """Return the seeds of a comparison.

    Args:
        seeds: Number of seeds, starting at 0, or the seeds themselves.

    Raises:
        BadSetting: If this is neither.
    """
    if isinstance(seeds, str | bool | float):
        raise BadSetting(f"seeds = {seeds!r} must be a number of seeds (5), or the seeds: [4, 7] or range(10, 20)")
    return tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
