"""Progress on stderr: live in a terminal and in a notebook that has ipywidgets, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fedbalancer.experiments import rounds
from fedbalancer.experiments.events import JobEvent, Listen

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

LINE_EVERY_SHARE = 0.25
TICK_S = 0.1
FULL = 1000
"""Steps of a run's bar."""
Key = tuple[str, int]


def is_wanted(progress: bool | None) -> bool:
    """Whether to say how far runs are that are started from Python: as told, or else where somebody looks on."""
    if progress is not None:
        return progress
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


@contextmanager
def run_display(title: str, shown: bool = True) -> Iterator[Callable[[rounds.Progress], None]]:
    """A place to send the progress of one run."""
    with runs_display({("", 0): title}, shown) as listen:
        yield lambda progress: listen(JobEvent(("", 0), "running", progress))


@contextmanager
def comparison_display(methods: Sequence[str], seeds: Sequence[int], shown: bool = True) -> Iterator[Listen]:
    """A place to send the news of a comparison's runs."""
    titles = {(method, seed): f"{method} seed {seed}" for seed in seeds for method in methods}
    with runs_display(titles, shown) as listen:
        yield listen


@contextmanager
def runs_display(titles: Mapping[Key, str], shown: bool = True) -> Iterator[Listen]:
    """A place to send the news of any number of runs, of which these are all: a bar for each that goes on and, if there
    are several, one for all of them with the time left."""
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
    # What a cell prints is in nobody's way: in a notebook the bars are a widget of their own. It swallows whatever is
    # printed while it is drawn, by any thread, so there the bars are drawn between events and not by a clock.
    taken = not console.is_jupyter
    with Progress(
        *columns,
        console=console,
        auto_refresh=taken,
        disable=not _is_live(console),
        redirect_stdout=taken,
        redirect_stderr=taken,
    ) as bars:
        try:
            yield _Display(bars, titles)
        finally:
            bars.refresh()  # rich leaves a notebook at the last tick


def _is_live(console: Console) -> bool:
    """Whether bars can move there: rich draws them in a notebook by ipywidgets, and without it warns at every tick."""
    return find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal


class _Display:
    """Keeps a bar for every run that goes on; in lines it tells of those that end and, without a terminal, of all."""

    def __init__(self, bars: Progress, titles: Mapping[Key, str]) -> None:
        self._bars, self._titles = bars, titles
        self._shown: dict[Key, TaskID] = {}
        self._said: dict[Key, float] = {}
        self._shares: dict[Key, float] = {}
        self._ended: set[Key] = set()
        self._total = bars.add_task("all runs", total=FULL * len(titles), text="") if len(titles) > 1 else None
        self._drawn_s = 0.0

    def __call__(self, event: JobEvent) -> None:
        self._take(event)
        if not self._bars.live.auto_refresh and time.monotonic() >= self._drawn_s + TICK_S:
            self._drawn_s = time.monotonic()
            self._bars.refresh()

    def _take(self, event: JobEvent) -> None:
        if event.kind == "running":
            self._goes_on(event)
            return
        if event.kind == "further":
            assert event.progress is not None
            self._ended.discard(event.key)
            self._count(event.key, event.progress.share)
            return
        if event.key in self._shown:
            self._bars.remove_task(self._shown.pop(event.key))
        self._said.pop(event.key, None)
        self._ended.add(event.key)
        self._count(event.key, 1.0)
        if event.kind != "found":
            self._tell(event, (f"{event.kind}: {event.why}" if event.why else event.kind) + self._all())

    def _goes_on(self, event: JobEvent) -> None:
        now = event.progress
        assert now is not None
        self._ended.discard(event.key)  # one that ended may go on, for longer
        self._count(event.key, now.share)
        done = round(FULL * now.share)
        if event.key not in self._shown:
            title = self._titles[event.key]
            self._shown[event.key] = self._bars.add_task(title, total=FULL, completed=done, text="")
        self._bars.update(self._shown[event.key], completed=done, text=_where(now))
        if self._bars.disable and now.share >= self._said.get(event.key, 0.0) + LINE_EVERY_SHARE:
            self._said[event.key] = now.share
            left = _left(self._bars, self._shown[event.key])
            self._tell(event, f"{now.share:.0%}, {_where(now)}{left}{self._all()}")

    def _count(self, key: Key, share: float) -> None:
        self._shares[key] = share
        if self._total is not None:
            text = f"{len(self._ended)} of {len(self._titles)} done"
            self._bars.update(self._total, completed=round(FULL * sum(self._shares.values())), text=text)

    def _all(self) -> str:
        """Where all runs together stand."""
        if self._total is None:
            return ""
        share = sum(self._shares.values()) / len(self._titles)
        return f" (all runs: {share:.0%}{_left(self._bars, self._total)})"

    def _tell(self, event: JobEvent, words: str) -> None:
        self._bars.console.print(f"{self._titles[event.key]}: {words}", highlight=False, markup=False, soft_wrap=True)


def _left(bars: Progress, shown: TaskID) -> str:
    left_s = next((task.time_remaining for task in bars.tasks if task.id == shown), None)
    return "" if left_s is None else f", {int(left_s) // 60}:{int(left_s) % 60:02d} left"


def _where(progress: rounds.Progress) -> str:
    accuracy = "" if progress.accuracy is None else f", accuracy {progress.accuracy:.3f}"
    return f"round {progress.round}, clock {progress.clock_s:,.0f} s{accuracy}"
