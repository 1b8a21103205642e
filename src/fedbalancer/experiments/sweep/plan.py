"""What a sweep is to do, checked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.experiments.plan import BUDGET_METHOD, ComparisonPlan
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.experiments.sweep.space import Space

TIME, ACCURACY = "time-to-accuracy", "accuracy"
OBJECTIVES = (TIME, ACCURACY)
SAMPLERS = ("grid", "tpe", "random")
TRIALS = 20
"""Of a sweep that is no grid, unless told."""


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """A sweep that can start. By `objective` it looks for the least time until the `share` of FedAvg+1T's final
    accuracy, or for the highest accuracy at the budget, over as many `seeds`."""

    comparison: ComparisonPlan
    space: Space
    objective: str
    sampler: str
    trials: int
    share: float

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
        """Check everything that can be wrong."""
        space = Space.make(base.method_name, spaces)
        chosen = sampler if sampler is not None else ("grid" if space.is_grid else "tpe")
        if objective not in OBJECTIVES:
            raise UnknownName("objective", objective, OBJECTIVES)
        if chosen not in SAMPLERS:
            raise UnknownName("sampler", chosen, SAMPLERS)
        if chosen == "grid" and not space.is_grid:
            raise BadSetting("sampler grid needs lists of values; a range has too many: take tpe or random")
        if trials is not None and trials < 1:
            raise BadSetting(f"trials = {trials} must be at least 1")
        if not 0 < share <= 1:
            raise BadSetting(f"target = {share} must be a share of FedAvg+1T's final accuracy, over 0 and at most 1")
        comparison = ComparisonPlan.make(
            replace(base, method=BUDGET_METHOD),
            [BUDGET_METHOD],
            seeds,
            1.0,
            varied=[space.name(values) for values in space.corners()],
        )
        most = len(space.grid()) if chosen == "grid" else None
        wanted = trials if trials is not None else most or TRIALS
        count = wanted if most is None else min(wanted, most)
        return cls(
            comparison=comparison, space=space, objective=objective, sampler=chosen, trials=count, share=share
        )  # fmt: skip

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.comparison.seeds

    @property
    def minimised(self) -> bool:
        return self.objective == TIME

    @property
    def budgets_s(self) -> dict[int, float]:
        return self.comparison.budgets_s

    def spec(self, method: str, seed: int, target: float | None = None) -> RunSpec:
        """One run: within the budget, evaluated on a grid of seconds, and over when it holds the target."""
        of_seed = next(spec for spec in self.comparison.specs if spec.seed == seed)
        return replace(of_seed, method=method, target=target)

    def described(self) -> dict[str, Any]:
        """What tells this sweep from another: all but how many trials it has."""
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


def run_folder(out: Path, method: str, seed: int) -> Path:
    """Where a sweep keeps one of its runs."""
    return out / "runs" / method / f"seed-{seed}"
