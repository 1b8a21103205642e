"""The results of a sweep: a table of its trials, a figure, and the best trial as a method name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from fedbalancer.core.files import write_bytes, write_text
from fedbalancer.experiments.sweep.plan import SweepPlan
from fedbalancer.experiments.sweep.space import Choice
from fedbalancer.methods.names import value_text
from fedbalancer.reporting.plotting import new_figure, write_figure
from fedbalancer.reporting.style import GREY, RED, SKY

if TYPE_CHECKING:
    import optuna
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STATES = {"COMPLETE": "done", "PRUNED": "given up", "FAIL": "failed", "RUNNING": "stopped", "WAITING": "waiting"}


@dataclass(frozen=True)
class Trial:
    """One trial.

    Args:
        number: Its number in the study.
        method: The name of the method.
        state: done, given up, failed, stopped or waiting.
        value: The mean of `values`; None if the trial is not done.
        values: The value on every seed.
        settings: The settings that optuna chose.
        why: Why the trial failed.
    """

    number: int
    method: str
    state: str
    value: float | None
    values: tuple[float, ...]
    settings: dict[str, Any]
    why: str = ""


@dataclass(frozen=True)
class Sweep:
    """The trials of a sweep.

    Args:
        objective: time-to-accuracy, or the name of a metric.
        minimised: Whether a lower value is better.
        trials: All trials that were started.
        stopped: Whether the sweep was interrupted.
    """

    objective: str
    is_minimised: bool
    trials: tuple[Trial, ...]
    stopped: bool = False

    @property
    def ranked(self) -> list[Trial]:
        """The trials with a value, best first. A method that was tried several times appears once."""
        first = {trial.method: trial for trial in reversed(self.trials) if trial.value is not None}
        sign = 1 if self.is_minimised else -1
        return sorted(first.values(), key=lambda trial: (sign * (trial.value or 0.0), trial.number))

    @property
    def best(self) -> Trial | None:
        """The best trial; None if no trial is done."""
        return self.ranked[0] if self.ranked else None

    def to_json(self) -> dict[str, Any]:
        """Return the sweep as plain values."""
        best = self.best
        return {
            "objective": self.objective,
            "best": None if best is None else {"method": best.method, "value": best.value, "settings": best.settings},
            "trials": [vars(trial) for trial in self.trials],
        }


def read_trials(study: optuna.Study) -> tuple[Trial, ...]:
    """Return all trials of a study that were started, except lost ones, which were queued again."""
    return tuple(
        Trial(
            trial.number,
            str(trial.user_attrs["method"]),
            STATES[trial.state.name],
            trial.value if trial.state.name == "COMPLETE" else None,
            tuple(trial.user_attrs.get("values", ())),
            dict(trial.params),
            str(trial.user_attrs.get("why", "")),
        )
        for trial in study.get_trials(deepcopy=False)
        if "method" in trial.user_attrs and (trial.state.name != "FAIL" or "why" in trial.user_attrs)
    )


def write_results(plan: SweepPlan, study: optuna.Study, out: Path, stopped: bool) -> Sweep:
    """Write trials.parquet, table.md, figures/trials.png and figures/trials.svg.

    Args:
        plan: The sweep.
        study: The optuna study.
        out: The folder of the sweep.
        stopped: Whether the sweep was interrupted.
    """
    sweep = Sweep(plan.objective, plan.is_minimised, read_trials(study), stopped)
    write_bytes(out / "trials.parquet", _parquet(plan, sweep.trials))
    write_text(out / "table.md", markdown(plan, sweep))
    figure = plot_trials(plan, sweep.trials)
    for suffix in ("png", "svg"):
        write_figure(figure, out / "figures" / f"trials.{suffix}")
    return sweep


def plot_trials(plan: SweepPlan, trials: Sequence[Trial]) -> Figure:
    """Plot the value of every trial with the running best value, and the value over each setting.

    Args:
        plan: The sweep.
        trials: The trials.
    """
    parameters = plan.space.parameters
    figure = new_figure(3.4 * (1 + len(parameters)), 3.4)
    panels = figure.subplots(1, 1 + len(parameters), sharey=True, squeeze=False)[0]
    valued = [trial for trial in trials if trial.value is not None]
    _draw_progress(panels[0], plan, trials, valued)
    for axes, parameter in zip(panels[1:], parameters, strict=True):
        texts = list(map(value_text, parameter.values)) if isinstance(parameter, Choice) else None
        _draw_setting(axes, parameter.key, texts, valued, bool(getattr(parameter, "log", False)))
    figure.suptitle(f"{plan.space.method} on {plan.comparison.task.name}", fontsize=11)
    return figure


def _draw_progress(axes: Axes, plan: SweepPlan, trials: Sequence[Trial], valued: Sequence[Trial]) -> None:
    better = min if plan.is_minimised else max
    best = [better(t.value for t in valued[: index + 1] if t.value is not None) for index in range(len(valued))]
    axes.plot([t.number for t in valued], [t.value or 0.0 for t in valued], "o", color=SKY, label="trial")
    axes.step([t.number for t in valued], best, where="post", color=RED, label="best until then")
    for number in (trial.number for trial in trials if trial.state == "given up"):
        axes.axvline(number, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)))
    axes.set(xlabel="Trial (dotted: given up)", ylabel="Time, FedAvg+1T = 1" if plan.is_time else plan.metric.heading)
    axes.legend(fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_setting(axes: Axes, key: str, texts: list[str] | None, valued: Sequence[Trial], log: bool) -> None:
    values: list[Any] = [trial.settings[key] for trial in valued]
    if texts is not None:
        values = [texts.index(value_text(value)) for value in values]
        axes.set_xticks(range(len(texts)), texts)
        axes.set_xlim(-0.5, len(texts) - 0.5)
    axes.plot(values, [trial.value or 0.0 for trial in valued], "o", color=SKY)
    if log:
        axes.set_xscale("log")
    axes.set_xlabel(key)
    axes.spines[["top", "right"]].set_visible(False)


def value_caption(plan: SweepPlan) -> str:
    """Return a sentence that explains the values."""
    seeds = f"mean of {len(plan.seeds)} seeds" if len(plan.seeds) > 1 else "one seed"
    if plan.is_time:
        return (
            f"Value: time until {plan.share:.0%} of FedAvg+1T's final {plan.metric.title} is held, divided by "
            f"FedAvg+1T's own time; lower is better; {seeds}. A trial that misses the target counts as the budget, "
            "increased by the share that it missed."
        )
    better = "lower" if plan.is_minimised else "higher"
    return f"Value: {plan.metric.title} at the end of FedAvg+1T's budget; {better} is better; {seeds}."


def rows(sweep: Sweep) -> list[tuple[str, str, str]]:
    """Return method, value and state of every trial: best first, then trials without a value."""
    valued = [(trial.method, f"{trial.value:.3f}", trial.state) for trial in sweep.ranked]
    return valued + [(trial.method, "–", trial.state) for trial in sweep.trials if trial.value is None]


def markdown(plan: SweepPlan, sweep: Sweep) -> str:
    """Return the table as Markdown.

    Args:
        plan: The sweep.
        sweep: Its trials.
    """
    head = f"Sweep of {plan.space.method} on {plan.comparison.task.name}: {'; '.join(map(str, plan.space.parameters))}."
    lines = ["| Method | Value | State |", "|:--|--:|:--|", *(f"| {' | '.join(row)} |" for row in rows(sweep))]
    return "\n\n".join([head, value_caption(plan), "\n".join(lines)]) + "\n"


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
