"""Progress of an item on stderr: all its runs together, and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from fedbalancer.paper.pool import FOUND
from fedbalancer.paper.request import Listen
from fedbalancer.runs.jobs import JobEvent

FULL = 1000
LINE_EVERY_S = 30.0
"""Where there is no terminal, running work says no more often than this how far it is."""

GO_ON = "runs that did not reach the target go on past their budget, so that some that were done are not"


@contextmanager
def item_display(name: str, runs: int) -> Iterator[Listen]:
    """A place to send the news of all runs of an item."""
    console = Console(stderr=True)
    columns = ("{task.description}", BarColumn(24), TextColumn("{task.fields[text]}"))
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        yield _Total(name, runs, bars).listen


class _Total:
    """Knows of every run how much of it is behind, and by the pace so far how long the rest takes."""

    def __init__(self, name: str, runs: int, bars: Progress) -> None:
        self.runs, self.bars, self.name = runs, bars, name
        self.shares: dict[tuple[str, str, int], float] = {}
        self.found: set[tuple[str, str, int]] = set()
        self.told: set[str] = set()
        self.started = self.said = time.monotonic()
        self.bar = bars.add_task(name, total=FULL, text="", visible=runs > 0)

    def listen(self, task: str, event: JobEvent) -> None:
        key = (task, *event.key)
        if event.kind == "running":
            assert event.progress is not None
            self.shares[key] = max(self.shares.get(key, 0.0), min(event.progress.share, 0.999))
        elif event.kind == "further":
            assert event.progress is not None
            self.shares[key] = min(event.progress.share, 0.999)
            self.found.discard(key)
            self._say_once(GO_ON)
        elif event.kind == "waiting":
            self.shares.setdefault(key, 0.0)
        elif event.kind != "stopped":
            self.shares[key] = 1.0
            self.found |= {key} if event.why == FOUND else set()
        self.runs = max(self.runs, len(self.shares))  # what an item runs may hang on what it has found
        self._show(f"{task} {event.key[0]} seed {event.key[1]}", event)

    def _show(self, title: str, event: JobEvent) -> None:
        ended = event.kind not in ("running", "waiting", "further") and event.why != FOUND
        text = f"{sum(share >= 1 for share in self.shares.values())} of {self.runs} runs{self._left()}"
        self.bars.update(self.bar, completed=round(FULL * self._share()), text=text)
        due = self.bars.disable and time.monotonic() - self.said >= LINE_EVERY_S
        if ended or due:
            self.said = time.monotonic()
            words = (f"{event.kind}: {event.why}" if event.why else event.kind) if ended else "running"
            line = f"{self.name}: {text}; {title} {words}"
            self.bars.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _say_once(self, what: str) -> None:
        if what not in self.told:
            self.told.add(what)
            self.bars.console.print(f"{self.name}: {what}", highlight=False, markup=False, soft_wrap=True)

    def _share(self) -> float:
        return sum(self.shares.values()) / max(self.runs, 1)

    def _left(self) -> str:
        """By what was done since the command began; runs that were there already say nothing about the pace."""
        done = sum(share for key, share in self.shares.items() if key not in self.found)
        left = self.runs - len(self.found) - done
        if done <= 0.5:
            return ""
        left_s = int((time.monotonic() - self.started) / done * max(left, 0.0))
        hours, minutes = divmod(left_s // 60, 60)
        return f", {hours}:{minutes:02d}:{left_s % 60:02d} left" if hours else f", {minutes}:{left_s % 60:02d} left"
