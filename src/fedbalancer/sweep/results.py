"""What a sweep found: a table of its trials, a figure, and the best of them as the name of a method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from fedbalancer.files import write_bytes, write_text
from fedbalancer.spelling import value_text
from fedbalancer.sweep.figure import write_figure
from fedbalancer.sweep.plan import SweepPlan

if TYPE_CHECKING:
    import optuna

WORDS = {"COMPLETE": "done", "PRUNED": "given up", "FAIL": "failed", "RUNNING": "stopped", "WAITING": "waiting"}


@dataclass(frozen=True)
class Trial:
    """One trial; `value` is None unless it was carried through."""

    number: int
    method: str
    state: str
    value: float | None
    values: tuple[float, ...]
    settings: dict[str, Any]
    why: str = ""


@dataclass(frozen=True)
class Sweep:
    """A sweep as far as it has come; `stopped` if it was interrupted."""

    objective: str
    minimised: bool
    trials: tuple[Trial, ...]
    stopped: bool = False

    @property
    def ranked(self) -> list[Trial]:
        """The trials with a value, best first; of equal methods, which a search may try again, the first."""
        found = {trial.method: trial for trial in reversed(self.trials) if trial.value is not None}
        sign = 1 if self.minimised else -1
        return sorted(found.values(), key=lambda trial: (sign * (trial.value or 0.0), trial.number))

    @property
    def best(self) -> Trial | None:
        return self.ranked[0] if self.ranked else None

    def to_json(self) -> dict[str, Any]:
        best = self.best
        return {
            "objective": self.objective,
            "best": None if best is None else {"method": best.method, "value": best.value, "settings": best.settings},
            "trials": [vars(trial) for trial in self.trials],
        }


def read_trials(study: optuna.Study) -> tuple[Trial, ...]:
    """All trials of a study that were begun, without those whose process went away: they were queued again."""
    return tuple(
        Trial(
            trial.number,
            str(trial.user_attrs["method"]),
            WORDS[trial.state.name],
            trial.value if trial.state.name == "COMPLETE" else None,
            tuple(trial.user_attrs.get("values", ())),
            dict(trial.params),
            str(trial.user_attrs.get("why", "")),
        )
        for trial in study.get_trials(deepcopy=False)
        if "method" in trial.user_attrs and (trial.state.name != "FAIL" or "why" in trial.user_attrs)
    )


def write_results(plan: SweepPlan, study: optuna.Study, out: Path, stopped: bool) -> Sweep:
    """trials.parquet, table.md and figures/trials.png and .svg."""
    sweep = Sweep(plan.objective, plan.minimised, read_trials(study), stopped)
    write_bytes(out / "trials.parquet", _parquet(plan, sweep.trials))
    write_text(out / "table.md", markdown(plan, sweep))
    write_figure(out / "figures", plan, sweep.trials)
    return sweep


def rule(plan: SweepPlan) -> str:
    """How the values are to be read."""
    seeds = f"mean of {len(plan.seeds)} seeds" if len(plan.seeds) > 1 else "one seed"
    if plan.minimised:
        return (
            f"Value: seconds until {plan.share:.0%} of FedAvg+1T's final accuracy is held, in FedAvg+1T's own; less "
            f"is better; {seeds}. What never got there counts as the budget, lengthened by the share that it missed."
        )
    return f"Value: accuracy at the end of FedAvg+1T's budget; more is better; {seeds}."


def rows(sweep: Sweep) -> list[tuple[str, str, str]]:
    """Method, value and state of every trial, best first, then those without a value."""
    valued = [(trial.method, f"{trial.value:.3f}", trial.state) for trial in sweep.ranked]
    return valued + [(trial.method, "–", trial.state) for trial in sweep.trials if trial.value is None]


def markdown(plan: SweepPlan, sweep: Sweep) -> str:
    """The table as Markdown."""
    head = f"Sweep of {plan.space.method} on {plan.comparison.task.name}: {'; '.join(map(str, plan.space.parameters))}."
    lines = ["| Method | Value | State |", "|:--|--:|:--|", *(f"| {' | '.join(row)} |" for row in rows(sweep))]
    return "\n\n".join([head, rule(plan), "\n".join(lines)]) + "\n"


def _parquet(plan: SweepPlan, trials: Sequence[Trial]) -> bytes:
    from io import BytesIO

    fixed: dict[str, Any] = {"number": pl.Int64, "method": pl.String, "state": pl.String, "value": pl.Float64,
             "values": pl.List(pl.Float64), "why": pl.String}  # fmt: skip
    content = {name: [getattr(trial, name) for trial in trials] for name in fixed}
    content["values"] = [list(trial.values) for trial in trials]
    keys = [each.key for each in plan.space.parameters]
    own = {key: [_column(trial.settings.get(key)) for trial in trials] for key in keys}
    data = BytesIO()
    settings = {key: pl.Series(values, strict=False) for key, values in own.items()}
    pl.DataFrame(content, schema=fixed).with_columns(**settings).write_parquet(data)
    return data.getvalue()


def _column(value: Any) -> Any:
    return (
        value
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool))
        else value_text(value)
    )
