"""The trials of a sweep as a picture: how the best one improved, and the value over every setting."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbalancer.files import write_bytes
from fedbalancer.report.style import GREY, RED, SKY
from fedbalancer.spelling import value_text
from fedbalancer.sweep.plan import SweepPlan
from fedbalancer.sweep.space import Choice

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedbalancer.sweep.results import Trial

DOTS_PER_INCH = 160


def write_figure(folder: Path, plan: SweepPlan, trials: Sequence[Trial]) -> None:
    """figures/trials.png and .svg."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    parameters = plan.space.parameters
    figure = Figure(figsize=(3.4 * (1 + len(parameters)), 3.4), layout="constrained")
    axes = figure.subplots(1, 1 + len(parameters), sharey=True, squeeze=False)[0]
    valued = [trial for trial in trials if trial.value is not None]
    _over_trials(axes[0], plan, trials, valued)
    for place, parameter in zip(axes[1:], parameters, strict=True):
        texts = list(map(value_text, parameter.values)) if isinstance(parameter, Choice) else None
        _over_setting(place, parameter.key, texts, valued, bool(getattr(parameter, "log", False)))
    figure.suptitle(f"{plan.space.method} on {plan.comparison.task.name}", fontsize=11)
    for suffix in ("png", "svg"):
        data = BytesIO()
        figure.savefig(data, format=suffix, dpi=DOTS_PER_INCH, metadata={"Date": None} if suffix == "svg" else None)
        write_bytes(folder / f"trials.{suffix}", data.getvalue())


def _over_trials(axes: Axes, plan: SweepPlan, trials: Sequence[Trial], valued: Sequence[Trial]) -> None:
    better = min if plan.minimised else max
    so_far = [better(t.value for t in valued[: place + 1] if t.value is not None) for place in range(len(valued))]
    axes.plot([t.number for t in valued], [t.value or 0.0 for t in valued], "o", color=SKY, label="trial")
    axes.step([t.number for t in valued], so_far, where="post", color=RED, label="best so far")
    for number in (trial.number for trial in trials if trial.state == "given up"):
        axes.axvline(number, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)))
    axes.set(xlabel="Trial (dotted: given up)", ylabel="Time, FedAvg+1T = 1" if plan.minimised else "Accuracy")
    axes.legend(fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _over_setting(axes: Axes, key: str, texts: list[str] | None, valued: Sequence[Trial], log: bool) -> None:
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
