"""Methods x seeds on one task, checked before anything runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import BadSetting
from fedbalancer.data import Task
from fedbalancer.experiments.simulation import check_settings, resolve_spec, timed_clock_s
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
    """A comparison that can start: `base` is what all its runs have in common, `task` its task, loaded."""

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
        """Check everything that can be wrong. The rounds of `base` are the task's, by which the budget is found; `rule`
        (fair or paper) is how the runs are evaluated and scored, `targets` are shares of the reference's final
        accuracy, the main one first. `varied` are further methods with the same settings."""
        numbers = _numbers(seeds)
        methods = [canonical_name(method) if isinstance(method, str) else method for method in methods]
        names = [method if isinstance(method, str) else method.name for method in methods]
        if not numbers or not names:
            raise BadSetting("a comparison needs at least one method and one seed")
        if len(set(names)) < len(names):
            raise BadSetting(f"methods are named twice: {', '.join(names)}")
        if not 1 <= extend <= 1000:
            raise BadSetting(f"extend = {extend} must be from 1 to 1000 budgets")
        rounds = {} if base.rounds is None else {"rounds": base.rounds}
        base = replace(base, method=methods[0], rounds=None, settings={**base.overrides, **rounds})
        task = base.load_task()
        check_settings([replace(base, method=method) for method in (*methods, *varied)], task)
        settings, _ = resolve_spec(base, task)
        return cls(
            base=base, task=task, methods=tuple(methods), seeds=numbers, rounds=settings.rounds, extend=extend,
            rule=check_rule(rule), targets=check_targets(targets),
        )  # fmt: skip

    @classmethod
    def read(cls, folder: Path, trusted: Collection[str] | None = (), **changes: str | None) -> ComparisonPlan:
        """The plan of the comparison in a folder, with those of the changes to its runs that are not None. Of the code
        that the folder names (`code_of`), only what is `trusted`, or was started here before, is run."""
        written = ComparisonFile.read(folder)
        asked = {name: value for name, value in changes.items() if value is not None}
        base = RunSpec.from_json({**written.spec, **asked})
        check_trusted(code_of(base, written.methods), trusted)
        return cls.make(base, written.methods, written.seeds, written.extend, written.rule, written.targets)

    @property
    def specs(self) -> list[RunSpec]:
        """All runs to the end of their budget, seed by seed, so that a comparison that is stopped early has whole
        seeds. By the fair rule all runs of a seed are evaluated on one grid."""
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
        return tuple(method if isinstance(method, str) else method.name for method in self.methods)

    @property
    def own_task(self) -> Task | None:
        """The task, if it has no name by which another process could load it."""
        return None if isinstance(self.base.task, str) else self.task

    @cached_property
    def budgets_s(self) -> dict[int, float]:
        """FedAvg+1T's clock after the task's rounds, per seed. Its rounds do not depend on the training, so the clock
        alone is run."""
        timed = replace(self.base, method=BUDGET_METHOD)
        return {seed: timed_clock_s(replace(timed, seed=seed), self.task, self.rounds) for seed in self.seeds}

    @property
    def file(self) -> ComparisonFile:
        """What comparison.json says."""
        named = self.own_task is None and all(isinstance(method, str) for method in self.methods)
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
            spec=self.base.to_json() if named else {},
        )


def _numbers(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """The seeds: so many from 0 on, or these. That each is a whole number is checked by the spec of its run."""
    if isinstance(seeds, str | bool | float):
        raise BadSetting(f"seeds = {seeds!r} must be how many (5), or which: [4, 7] or range(10, 20)")
    return tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
