"""Events of runs, and their display on stderr: live bars in a terminal or notebook, otherwise lines of text."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fedbalancer.core.errors import FedBalancerError
from fedbalancer.data import Task
from fedbalancer.reporting import Comparison, RunCurve
from fedbalancer.store import MemoryRecorder

if TYPE_CHECKING:
    from rich import progress as rich_progress
    from rich.console import Console

LINE_EVERY_SHARE = 0.25
REFRESH_S = 0.1
BAR_STEPS = 1000
Key = tuple[str, int]
"""The method's name and the seed of a run."""


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    Args:
        round: Number of rounds that are finished.
        clock_s: Simulated seconds.
        value: Main metric at the last evaluation; None before the first.
        share: Finished share of the rounds or of the budget, from 0 to 1.
        metric: Title of the metric.
    """

    round: int
    clock_s: float
    value: float | None
    share: float
    metric: str = "accuracy"

    @property
    def value_text(self) -> str:
        """The metric and its value, after a comma; empty before the first evaluation."""
        return "" if self.value is None else f", {self.metric} {self.value:.3f}"


@dataclass(frozen=True)
class JobEvent:
    """A change in the state of a run that is one of many.

    Args:
        key: Method name and seed of the run.
        kind: waiting, running, done, stopped or failed; found if the run was finished before; further if a finished run
            continues with a longer budget.
        progress: The progress of a run that is running.
        why: The reason for the event, for people.
        curve: The evaluations of a run that has ended.
        memory: The record of a run without a folder, with which it can continue.
    """

    key: Key
    kind: str
    progress: Progress | None = None
    why: str = ""
    curve: RunCurve | None = field(default=None, compare=False)
    memory: MemoryRecorder | None = field(default=None, compare=False)


Listen = Callable[[JobEvent], None]


def extension_event(key: Key, curve: RunCurve, budget_s: float) -> JobEvent:
    """Return the event of a finished run that continues with a longer budget.

    Args:
        key: Method name and seed.
        curve: The evaluations of the run.
        budget_s: The new budget in simulated seconds.
    """
    return JobEvent(key, "further", Progress(0, curve.last_s, None, min(curve.last_s / budget_s, 1.0)))


def shows_progress(requested: bool | None) -> bool:
    """Return whether a run started from Python shows its progress. Default: in notebooks and IPython only."""
    if requested is not None:
        return requested
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


@contextmanager
def run_display(title: str, shown: bool = True) -> Iterator[Callable[[Progress], None]]:
    """Provide a callback for the progress of one run.

    Args:
        title: The title of the run.
        shown: Whether to display anything.
    """
    with runs_display({("", 0): title}, shown) as listen:
        yield lambda progress: listen(JobEvent(("", 0), "running", progress))


@contextmanager
def comparison_display(methods: Sequence[str], seeds: Sequence[int], shown: bool = True) -> Iterator[Listen]:
    """Provide a callback for the events of a comparison's runs.

    Args:
        methods: The names of the methods.
        seeds: The seeds.
        shown: Whether to display anything.
    """
    titles = {(method, seed): f"{method} seed {seed}" for seed in seeds for method in methods}
    with runs_display(titles, shown) as listen:
        yield listen


@contextmanager
def runs_display(titles: Mapping[Key, str], shown: bool = True) -> Iterator[Listen]:
    """Provide a callback for the events of several runs.

    Shows a bar for each active run and, if there are several runs, one for all of them with the remaining time.

    Args:
        titles: The title of every run.
        shown: Whether to display anything.
    """
    if not shown:
        yield lambda event: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(24),
        TextColumn("{task.fields[text]}", markup=False),
        TimeRemainingColumn(),
    )
    # In a notebook the bars are a widget. While rich draws it, it swallows everything that any thread prints. So there
    # the bars are drawn between events and not by rich's own thread, and output is not redirected.
    redirects = not console.is_jupyter
    with Progress(
        *columns,
        console=console,
        auto_refresh=redirects,
        disable=not _is_live(console),
        redirect_stdout=redirects,
        redirect_stderr=redirects,
    ) as bars:
        try:
            yield _Display(bars, titles)
        finally:
            bars.refresh()  # in a notebook, rich does not draw the final state


def _is_live(console: Console) -> bool:
    """Return whether bars can be drawn. In a notebook this needs ipywidgets; without it rich warns at every refresh."""
    return find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal


class _Display:
    """Shows a bar per active run and a line per finished run; without a terminal, lines for all runs."""

    def __init__(self, bars: rich_progress.Progress, titles: Mapping[Key, str]) -> None:
        self._bars, self._titles = bars, titles
        self._active: dict[Key, rich_progress.TaskID] = {}
        self._printed: dict[Key, float] = {}
        self._shares: dict[Key, float] = {}
        self._ended: set[Key] = set()
        self._total = bars.add_task("all runs", total=BAR_STEPS * len(titles), text="") if len(titles) > 1 else None
        self._refreshed_s = 0.0

    def __call__(self, event: JobEvent) -> None:
        self._update(event)
        if not self._bars.live.auto_refresh and time.monotonic() >= self._refreshed_s + REFRESH_S:
            self._refreshed_s = time.monotonic()
            self._bars.refresh()

    def _update(self, event: JobEvent) -> None:
        if event.kind == "running":
            self._update_active(event)
            return
        if event.kind == "further":
            assert event.progress is not None
            self._ended.discard(event.key)
            self._set_share(event.key, event.progress.share)
            return
        if event.key in self._active:
            self._bars.remove_task(self._active.pop(event.key))
        self._printed.pop(event.key, None)
        self._ended.add(event.key)
        self._set_share(event.key, 1.0)
        if event.kind != "found":
            self._print(event, (f"{event.kind}: {event.why}" if event.why else event.kind) + self._total_text())

    def _update_active(self, event: JobEvent) -> None:
        now = event.progress
        assert now is not None
        self._ended.discard(event.key)  # a finished run may continue with a longer budget
        self._set_share(event.key, now.share)
        completed = round(BAR_STEPS * now.share)
        if event.key not in self._active:
            title = self._titles[event.key]
            self._active[event.key] = self._bars.add_task(title, total=BAR_STEPS, completed=completed, text="")
        self._bars.update(self._active[event.key], completed=completed, text=_progress_text(now))
        if self._bars.disable and now.share >= self._printed.get(event.key, 0.0) + LINE_EVERY_SHARE:
            self._printed[event.key] = now.share
            remaining = _remaining_text(self._bars, self._active[event.key])
            self._print(event, f"{now.share:.0%}, {_progress_text(now)}{remaining}{self._total_text()}")

    def _set_share(self, key: Key, share: float) -> None:
        self._shares[key] = share
        if self._total is not None:
            text = f"{len(self._ended)} of {len(self._titles)} done"
            self._bars.update(self._total, completed=round(BAR_STEPS * sum(self._shares.values())), text=text)

    def _total_text(self) -> str:
        if self._total is None:
            return ""
        share = sum(self._shares.values()) / len(self._titles)
        return f" (all runs: {share:.0%}{_remaining_text(self._bars, self._total)})"

    def _print(self, event: JobEvent, text: str) -> None:
        self._bars.console.print(f"{self._titles[event.key]}: {text}", highlight=False, markup=False, soft_wrap=True)


def _remaining_text(bars: rich_progress.Progress, bar: rich_progress.TaskID) -> str:
    remaining_s = next((task.time_remaining for task in bars.tasks if task.id == bar), None)
    return "" if remaining_s is None else f", {int(remaining_s) // 60}:{int(remaining_s) % 60:02d} left"


def _progress_text(progress: Progress) -> str:
    return f"round {progress.round}, clock {progress.clock_s:,.0f} s{progress.value_text}"


@dataclass(frozen=True)
class ComparisonRun:
    """The outcome of a comparison.

    Args:
        comparison: The scores.
        folder: The folder of the comparison; None in memory.
        outcomes: The last event of every run.
    """

    comparison: Comparison
    folder: Path | None
    outcomes: Mapping[Key, JobEvent]

    @property
    def failed(self) -> list[JobEvent]:
        """The last events of the runs that failed."""
        return [event for event in self.outcomes.values() if event.kind == "failed"]

    @property
    def stopped(self) -> bool:
        """Whether a run was stopped before its end."""
        return any(event.kind == "stopped" for event in self.outcomes.values())

    def scores_or_error(self) -> Comparison:
        """Return the scores.

        Raises:
            FedBalancerError: If nothing can be scored.
        """
        if not self.comparison.seeds:
            failures = [f"{event.key[0]} seed {event.key[1]} failed: {event.why}" for event in self.failed]
            raise FedBalancerError(f"nothing can be scored: {'; '.join(failures or self.comparison.notes)}")
        return self.comparison


class Observer:
    """Receives what `fedbalancer.run` and `fedbalancer.compare` report besides their result.

    This one issues Python warnings. The command line derives its own, which prints to stderr.
    """

    def on_task(self, task: Task, seconds: float) -> None:
        """Called when the task is loaded and the settings are checked.

        Args:
            task: The task.
            seconds: How long loading took.
        """

    def on_warnings(self, messages: Iterable[str]) -> None:
        """Called with warnings before the run, and again after it.

        Args:
            messages: One sentence per warning.
        """
        for message in messages:
            warnings.warn(message, stacklevel=3)

    def on_comparison(self, outcome: ComparisonRun) -> None:
        """Called when all runs of a comparison have ended.

        Args:
            outcome: The scores, and how each run ended.
        """
