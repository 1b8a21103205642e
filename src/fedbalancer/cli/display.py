"""Progress on stderr: live where there is a terminal, a line now and then where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fedbalancer.runs import rounds
from fedbalancer.runs.jobs import JobEvent, Listen

LINE_EVERY_SHARE = 0.25
FULL = 1000
"""Steps of a bar."""
Titles = dict[tuple[str, int], str]


@contextmanager
def run_display(title: str) -> Iterator[Callable[[rounds.Progress], None]]:
    """A place to send the progress of one run."""
    with _display({("", 0): title}) as listen:
        yield lambda progress: listen(JobEvent(("", 0), "running", progress))


@contextmanager
def comparison_display(methods: Sequence[str], seeds: Sequence[int]) -> Iterator[Listen]:
    """A place to send the news of a comparison's runs."""
    with _display({(method, seed): f"{method} seed {seed}" for seed in seeds for method in methods}) as listen:
        yield listen


@contextmanager
def _display(titles: Titles) -> Iterator[Listen]:
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(24),
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        yield _listener(bars, titles)


def _listener(bars: Progress, titles: Titles) -> Listen:
    """Keeps a bar for every run that goes on; in lines it tells of those that end and, without a terminal, of all."""
    shown: dict[tuple[str, int], TaskID] = {}
    said: dict[tuple[str, int], float] = {}

    def listen(event: JobEvent) -> None:
        if event.kind != "running":
            if event.key in shown:
                bars.remove_task(shown.pop(event.key))
            said.pop(event.key, None)
            tell(event, f"{event.kind}: {event.why}" if event.why else event.kind)
            return
        now = event.progress
        assert now is not None
        done = round(FULL * now.share)
        if event.key not in shown:
            shown[event.key] = bars.add_task(titles[event.key], total=FULL, completed=done, text="")
        bars.update(shown[event.key], completed=done, text=_where(now))
        if bars.disable and now.share >= said.get(event.key, 0.0) + LINE_EVERY_SHARE:
            said[event.key] = now.share
            tell(event, f"{now.share:.0%}, {_where(now)}{_left(bars, shown[event.key])}")

    def tell(event: JobEvent, words: str) -> None:
        bars.console.print(f"{titles[event.key]}: {words}", highlight=False, markup=False, soft_wrap=True)

    return listen


def _left(bars: Progress, shown: TaskID) -> str:
    left_s = next((task.time_remaining for task in bars.tasks if task.id == shown), None)
    return "" if left_s is None else f", {int(left_s) // 60}:{int(left_s) % 60:02d} left"


def _where(progress: rounds.Progress) -> str:
    accuracy = "" if progress.accuracy is None else f", accuracy {progress.accuracy:.3f}"
    return f"round {progress.round}, clock {progress.clock_s:,.0f} s{accuracy}"
