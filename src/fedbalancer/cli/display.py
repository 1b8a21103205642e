"""Progress on stderr: live where there is a terminal, a line now and then where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedbalancer.runs.jobs import JobEvent
from fedbalancer.runs.rounds import Progress

LINE_EVERY_SHARE = 0.25


@dataclass
class _Row:
    """What is shown of one run."""

    kind: str = "waiting"
    progress: Progress | None = None
    why: str = ""
    first_share: float = 0.0
    started_at: float = field(default_factory=time.monotonic)

    def update(self, kind: str, progress: Progress | None, why: str = "") -> None:
        if progress is not None and (self.progress is None or self.kind != "running"):
            self.first_share, self.started_at = progress.share, time.monotonic()
        self.kind, self.why = kind, why
        self.progress = progress if progress is not None else self.progress

    def left_s(self) -> float | None:
        """Seconds left at the pace so far."""
        if self.progress is None or self.kind != "running" or self.progress.share <= self.first_share:
            return None
        pace = (time.monotonic() - self.started_at) / (self.progress.share - self.first_share)
        return pace * (1 - self.progress.share)


@contextmanager
def run_display(title: str) -> Iterator[Callable[[Progress], None]]:
    """A place to send the progress of one run."""
    with _display({("", 0): title}) as listen:
        yield lambda progress: listen(JobEvent(("", 0), "running", progress))


@contextmanager
def comparison_display(methods: Sequence[str], seeds: Sequence[int]) -> Iterator[Callable[[JobEvent], None]]:
    """A place to send the news of a comparison's runs."""
    with _display({(method, seed): f"{method} seed {seed}" for seed in seeds for method in methods}) as listen:
        yield listen


@contextmanager
def _display(titles: dict[tuple[str, int], str]) -> Iterator[Callable[[JobEvent], None]]:
    console = Console(stderr=True)
    rows = {key: _Row() for key in titles}
    if not console.is_terminal:
        yield _lines(console, titles, rows)
        return
    with Live(_Screen(titles, rows), console=console, refresh_per_second=4, transient=False) as live:

        def listen(event: JobEvent) -> None:
            rows[event.key].update(event.kind, event.progress, event.why)
            live.update(_Screen(titles, rows))

        yield listen


def _lines(
    console: Console, titles: dict[tuple[str, int], str], rows: dict[tuple[str, int], _Row]
) -> Callable[[JobEvent], None]:
    said: dict[tuple[str, int], float] = {}

    def listen(event: JobEvent) -> None:
        row = rows[event.key]
        row.update(event.kind, event.progress, event.why)
        share = row.progress.share if row.progress is not None else 0.0
        if event.kind == "running" and share < said.get(event.key, 0.0) + LINE_EVERY_SHARE:
            return
        said[event.key] = share
        console.out(f"{titles[event.key]}: {_words(row)}", highlight=False)

    return listen


class _Screen:
    """The live table: what runs now in full, the rest as counts."""

    def __init__(self, titles: dict[tuple[str, int], str], rows: dict[tuple[str, int], _Row]) -> None:
        self.titles = titles
        self.rows = rows

    def __rich__(self) -> RenderableType:
        table = Table(box=None, padding=(0, 1))
        for heading in ("run", "", "round", "clock", "accuracy", "time left"):
            table.add_column(heading, no_wrap=True)
        for key, row in self.rows.items():
            if row.kind == "running" and row.progress is not None:
                table.add_row(self.titles[key], ProgressBar(1.0, row.progress.share, width=24), *_cells(row))
        counts = {kind: sum(row.kind == kind for row in self.rows.values()) for kind in ("done", "waiting", "failed")}
        summary = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        failures = [
            Text(f"{self.titles[k]} failed: {r.why}", "red") for k, r in self.rows.items() if r.kind == "failed"
        ]
        return Group(table, *failures, Text(summary, "dim"))


def _cells(row: _Row) -> tuple[str, str, str, str]:
    assert row.progress is not None
    accuracy, left_s = row.progress.accuracy, row.left_s()
    return (
        str(row.progress.round),
        f"{row.progress.clock_s:,.0f} s",
        "" if accuracy is None else f"{accuracy:.3f}",
        "" if left_s is None else _minutes(left_s),
    )


def _words(row: _Row) -> str:
    if row.kind != "running" or row.progress is None:
        return f"{row.kind}{': ' + row.why if row.why else ''}"
    number, clock, accuracy, left = _cells(row)
    parts = [f"{row.progress.share:.0%}", f"round {number}", f"clock {clock}"]
    parts += [f"accuracy {accuracy}"] if accuracy else []
    parts += [f"{left} left"] if left else []
    return ", ".join(parts)


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
