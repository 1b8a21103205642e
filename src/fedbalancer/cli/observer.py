"""Prints what `fedbalancer.run` and `fedbalancer.compare` report."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import typer

from fedbalancer.cli.errors import EXIT_USER_ERROR
from fedbalancer.cli.output import describe_task_file, is_file, print_task, print_warnings, show
from fedbalancer.core.processes import EXIT_INTERRUPTED
from fedbalancer.data import Task
from fedbalancer.experiments.progress import ComparisonRun, Observer


class CommandLine(Observer):
    """Prints the task and the warnings to stderr, and a comparison's table to stdout.

    Args:
        task: The task as it was typed.
        options: The options of the run; the description of a task file shows its settings and rounds.
        trained: Whether the run trains.
        folder: The folder of a comparison.
        as_json: Print a comparison as JSON.
    """

    def __init__(
        self,
        task: str,
        options: Mapping[str, Any],
        *,
        trained: bool = True,
        folder: Path | None = None,
        as_json: bool = False,
    ) -> None:
        rounds = {"rounds": options["rounds"]} if options["rounds"] else {}
        self._is_file, self._trained = is_file(task), trained
        self._settings = {**options["settings"], **rounds}
        self._folder, self._as_json = folder, as_json

    def on_task(self, task: Task, seconds: float) -> None:
        if self._is_file:
            describe_task_file(task, self._settings, trained=self._trained)
        print_task(task, seconds)

    def on_warnings(self, messages: Iterable[str]) -> None:
        print_warnings(messages)

    def on_comparison(self, outcome: ComparisonRun) -> None:
        assert self._folder is not None
        print_comparison(outcome, self._folder, self._as_json)


def print_comparison(outcome: ComparisonRun, folder: Path, as_json: bool) -> None:
    """Print the table, the path of the report, and the runs that failed.

    Exits with code 130 if the comparison was stopped, and with code 2 if a run failed.

    Args:
        outcome: The outcome of the comparison.
        folder: Its folder.
        as_json: Print the scores as JSON.
    """
    if as_json:
        typer.echo(json.dumps(outcome.comparison.to_json()))
    else:
        show(outcome.comparison, folder / "table.md")
        typer.echo(f"report: {folder / 'report.html'}")
    for event in outcome.failed:
        typer.echo(f"error: {event.key[0]} seed {event.key[1]} failed: {event.why}", err=True)
    if outcome.stopped:
        typer.echo(f"stopped; to continue: fedbalancer resume {shlex.quote(str(folder))}", err=True)
        raise typer.Exit(EXIT_INTERRUPTED)
    if outcome.failed:
        raise typer.Exit(EXIT_USER_ERROR)
