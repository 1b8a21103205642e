"""The plan of a sweep, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.metrics import LOSS, Metric
from fedbalancer.experiments.plan import BUDGET_METHOD, ComparisonPlan
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.experiments.sweep.space import Space

TIME = "time-to-accuracy"
SAMPLERS = ("grid", "tpe", "random")
POINT = "method"
"""Name of the parameter of a sweep over a list of methods: the position in the list."""
TRIALS = 20
"""Default number of trials of a sweep that is not a grid."""


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """A sweep that can start.

    Args:
        comparison: The task, the seeds and their budgets.
        space: The settings to vary.
        objective: time-to-accuracy (shortest time to the target, also of another metric), or the name of a metric (best
            value at the budget).
        sampler: grid, tpe or random.
        trials: Number of trials.
        share: The target, as a share of FedAvg+1T's final value.
        methods: The methods to try, in this order, instead of values that a sampler draws.
        targets: Value of the metric to reach, by seed, instead of a share of FedAvg+1T's.
    """

    comparison: ComparisonPlan
    space: Space
    objective: str
    sampler: str
    trials: int
    share: float
    methods: tuple[str, ...] = ()
    targets: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def make(
        cls,
        base: RunSpec,
        spaces: Sequence[str],
        *,
        objective: str = TIME,
        sampler: str | None = None,
        trials: int | None = None,
        seeds: int = 1,
        share: float = 0.95,
    ) -> SweepPlan:
        """Check the options of a sweep and create its plan.

        Args:
            base: The method to vary, the task, and the options of all runs.
            spaces: The settings to vary, as on the command line.
            objective: time-to-accuracy, or a metric of the task, such as accuracy.
            sampler: grid, tpe or random. Default: grid for lists of values, otherwise tpe.
            trials: Number of trials. Default: the whole grid, or 20.
            seeds: Number of seeds per trial.
            share: The target, as a share of FedAvg+1T's final accuracy.

        Raises:
            BadSetting: If an option is invalid.
            UnknownName: If the objective, the sampler or a setting is unknown.
        """
        space = Space.make(base.method_name, spaces)
        chosen = sampler if sampler is not None else ("grid" if space.is_grid else "tpe")
        if chosen not in SAMPLERS:
            raise UnknownName("sampler", chosen, SAMPLERS)
        if chosen == "grid" and not space.is_grid:
            raise BadSetting("sampler grid needs lists of values, not ranges; use tpe or random")
        if trials is not None and trials < 1:
            raise BadSetting(f"trials = {trials} must be at least 1")
        if not 0 < share <= 1:
            raise BadSetting(f"target = {share} must be a share of FedAvg+1T's final value: above 0, at most 1")
        comparison = ComparisonPlan.make(
            replace(base, method=BUDGET_METHOD), [BUDGET_METHOD], seeds, 1.0,
            varied=[space.name(values) for values in space.corners()],
        )  # fmt: skip
        comparison = _score_by(comparison, objective)
        most = len(space.grid()) if chosen == "grid" else None
        requested = trials if trials is not None else most or TRIALS
        count = requested if most is None else min(requested, most)
        return cls(
            comparison=comparison, space=space, objective=objective, sampler=chosen, trials=count, share=share
        )  # fmt: skip

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of every trial."""
        return self.comparison.seeds

    @property
    def metric(self) -> Metric:
        """The metric of the target, or of the objective."""
        return self.comparison.metric

    @property
    def is_time(self) -> bool:
        """Whether the objective is the time to the target."""
        return self.objective == TIME

    @property
    def is_minimised(self) -> bool:
        """Whether a lower value is better."""
        return self.is_time or not self.metric.higher_is_better

    @property
    def budgets_s(self) -> dict[int, float]:
        """FedAvg+1T's simulated seconds, by seed."""
        return self.comparison.budgets_s

    def spec(self, method: str, seed: int, target: float | None = None) -> RunSpec:
        """Return the spec of one run.

        Args:
            method: The method of the trial.
            seed: The seed.
            target: A value of the metric at which the run ends before its budget.
        """
        of_seed = next(spec for spec in self.comparison.specs if spec.seed == seed)
        return replace(of_seed, method=method, target=target)

    def draw(self, trial: Any) -> str:
        """Return the method of a trial that optuna proposes."""
        if self.methods:
            return self.methods[int(trial.suggest_int(POINT, 0, len(self.methods) - 1))]
        return self.space.name(self.space.draw(trial))

    def to_json(self) -> dict[str, Any]:
        """Return everything that identifies this sweep; the number of trials does not."""
        return {
            "task": self.comparison.task.name,
            "variant": self.comparison.task.variant,
            "method": self.space.method,
            "space": [str(each) for each in self.space.parameters],
            "objective": self.objective,
            "sampler": self.sampler,
            "share": self.share,
            "seeds": list(self.seeds),
            "spec": self.comparison.base.to_json(),
        }


def _score_by(comparison: ComparisonPlan, objective: str) -> ComparisonPlan:
    """Return the comparison, scored by the metric of the objective."""
    names = [metric.name for metric in (*comparison.task.metrics, LOSS)]
    if objective in (TIME, comparison.metric.name):
        return comparison
    if objective not in names:
        raise UnknownName("objective", objective, [TIME, *names])
    if comparison.base.target_metric is not None:
        raise BadSetting(f"objective = {objective} differs from target_metric = {comparison.base.target_metric}")
    return replace(comparison, base=replace(comparison.base, target_metric=objective))


def run_folder(out: Path, method: str, seed: int) -> Path:
    """Return the folder of one of a sweep's runs.

    Args:
        out: The folder of the sweep.
        method: The method of the trial.
        seed: The seed.
    """
    return out / "runs" / method / f"seed-{seed}"
