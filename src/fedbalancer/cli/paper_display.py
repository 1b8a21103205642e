"""Show the progress of an item on stderr: all its runs together, and the remaining time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from fedbalancer.experiments.progress import JobEvent
from fedbalancer.paper.item import Listen
from fedbalancer.paper.pool import REUSED

FULL = 1000
LINE_EVERY_S = 30.0
"""Minimum seconds between progress lines without a terminal."""

EXTENDED = "runs that did not reach the target continue beyond their budget, so some finished runs are running again"


@contextmanager
def item_display(name: str, runs: int) -> Iterator[Listen]:
    """Provide a callback for the events of all runs of an item."""
    console = Console(stderr=True)
    columns = ("{task.description}", BarColumn(24), TextColumn("{task.fields[text]}"))
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        yield _Total(name, runs, bars).listen


class _Total:
    """Tracks the progress of every run and estimates the remaining time."""

    def __init__(self, name: str, runs: int, bars: Progress) -> None:
        self.runs, self.bars, self.name = runs, bars, name
        self.shares: dict[tuple[str, str, int], float] = {}
        self.reused: set[tuple[str, str, int]] = set()
        self.printed: set[str] = set()
        self.started = self.printed_s = time.monotonic()
        self.bar = bars.add_task(name, total=FULL, text="", visible=runs > 0)

    def listen(self, task: str, event: JobEvent) -> None:
        key = (task, *event.key)
        if event.kind == "running":
            assert event.progress is not None
            self.shares[key] = max(self.shares.get(key, 0.0), min(event.progress.share, 0.999))
        elif event.kind == "further":
            assert event.progress is not None
            self.shares[key] = min(event.progress.share, 0.999)
            self.reused.discard(key)
            self._print_once(EXTENDED)
        elif event.kind == "waiting":
            self.shares.setdefault(key, 0.0)
        elif event.kind != "stopped":
            self.shares[key] = 1.0
            self.reused |= {key} if event.why == REUSED else set()
        self.runs = max(self.runs, len(self.shares))  # an item may add runs that depend on earlier results
        self._show(f"{task} {event.key[0]} seed {event.key[1]}", event)

    def _show(self, title: str, event: JobEvent) -> None:
        ended = event.kind not in ("running", "waiting", "further") and event.why != REUSED
        text = f"{sum(share >= 1 for share in self.shares.values())} of {self.runs} runs{self._left()}"
        self.bars.update(self.bar, completed=round(FULL * self._share()), text=text)
        due = self.bars.disable and time.monotonic() - self.printed_s >= LINE_EVERY_S
        if ended or due:
            self.printed_s = time.monotonic()
            text_of_run = (f"{event.kind}: {event.why}" if event.why else event.kind) if ended else "running"
            line = f"{self.name}: {text}; {title} {text_of_run}"
            self.bars.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _print_once(self, message: str) -> None:
        if message not in self.printed:
            self.printed.add(message)
            self.bars.console.print(f"{self.name}: {message}", highlight=False, markup=False, soft_wrap=True)

    def _share(self) -> float:
        return sum(self.shares.values()) / max(self.runs, 1)

    def _left(self) -> str:
        """Estimate the remaining time from the runs executed by this command, without reused ones."""
        done = sum(share for key, share in self.shares.items() if key not in self.reused)
        left = self.runs - len(self.reused) - done
        if done <= 0.5:
            return ""
        left_s = int((time.monotonic() - self.started) / done * max(left, 0.0))
        hours, minutes = divmod(left_s // 60, 60)
        return f", {hours}:{minutes:02d}:{left_s % 60:02d} left" if hours else f", {minutes}:{left_s % 60:02d} left"
