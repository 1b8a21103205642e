"""What was asked of an item: the tasks, how large, how many seeds, and where things are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbalancer.engine.executors import Resources
from fedbalancer.errors import BadSetting
from fedbalancer.reporting.rule import Rule
from fedbalancer.runs.jobs import JobEvent
from fedbalancer.runs.spec import RunSpec

Listen = Callable[[str, JobEvent], None]
"""Told the task and the news of one of its runs."""


class Stopped(Exception):
    """The user asked to stop; what was done is kept."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One call of `fedbalancer paper ITEM`. `settings` hold for all runs; `grid` says whether the runs over Table 2's
    settings are wanted; `runs` is the pool of runs, which all items share."""

    tasks: tuple[str, ...]
    scale: str = "small"
    seeds: int = 3
    users: int | None = None
    variant: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    rounds: int | None = None
    extend: float = 2.0
    rule: Rule = "fair"
    grid: bool = True
    runs: Path = Path("runs") / "paper"
    jobs: int | None = None
    resources: Resources = field(default_factory=lambda: Resources(workers=None))
    engine: str = "fast"
    device: str = "cpu"

    def __post_init__(self) -> None:
        if not self.tasks:
            raise BadSetting("an item needs at least one task; name them with --tasks a,b")
        if len(set(self.tasks)) < len(self.tasks):
            raise BadSetting(f"tasks are named twice: {', '.join(self.tasks)}")
        if not 1 <= self.seeds <= 1000:
            raise BadSetting(f"seeds = {self.seeds} must be from 1 to 1000")
        if not 1 <= self.extend <= 1000:
            raise BadSetting(f"extend = {self.extend} must be from 1 to 1000 budgets")

    def spec(self, task: str) -> RunSpec:
        """What all runs on a task have in common."""
        return RunSpec(
            task=task, scale=self.scale, users=self.users, variant=self.variant, settings=dict(self.settings),
            rounds=self.rounds, engine=self.engine, device=self.device,
        )  # fmt: skip
