"""What `fedbalancer data` prints: tables on stdout, progress on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from fedbalancer.core.files import data_folder
from fedbalancer.data.catalogue.catalog import Check, Facts, Row
from fedbalancer.data.source import Source
from fedbalancer.reporting.style import size_text

if TYPE_CHECKING:
    from fedbalancer.data.catalogue.download import Progress as Listener

LINE_EVERY_SHARE = 0.25


def print_list(rows: Sequence[Row]) -> None:
    """A table, and below it what is too long for one: titles, licences and citations."""
    console = Console(markup=False, emoji=False)
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for heading in ("task", "variant", "kind", "here", "users", "samples", "scale", "size"):
        table.add_column(heading, no_wrap=True)
    for row in rows:
        counts = (_number(row.users), _number(row.samples), row.scale or "", size(row.size_bytes))
        table.add_row(row.task, row.variant, row.kind, row.present, *counts)
    console.print(table)
    for row in rows:
        name = f"{row.task} ({row.variant})" if row.variant else row.task
        terms = "".join(
            (f"; licence: {row.licence}" * bool(row.licence), f"; cite: {row.citation}" * bool(row.citation))
        )
        console.out(f"{name}: {row.title}{terms}", highlight=False)
    console.out(f"data folder: {data_folder()}", highlight=False)


def print_checks(checks: Sequence[Check]) -> None:
    """A line per data set; what is wrong goes to stderr."""
    for check in checks:
        name = f"{check.task} ({check.variant})" if check.variant else check.task
        if check.facts is None:
            typer.echo(f"error: {name}: {check.error}", err=True)
        else:
            typer.echo(f"{name}: ok, {words(check.facts)}")


def put_in_place(task: str, source: Source, facts: Facts) -> None:
    """Say what came where, and what can be done with it."""
    where = ", ".join(map(str, source.paths))
    typer.echo(f"{task} ({source.variant}) is in {where}: {words(facts)}")
    typer.echo(f"next: fedbalancer run {task} --variant {source.variant}")


def words(facts: Facts) -> str:
    """The facts in one line."""
    return (
        f"{facts.users:,} users, {facts.samples:,} samples, {facts.test_samples:,} to test on, "
        f"{facts.labels:,} labels (scale {facts.scale})"
    )


@contextmanager
def download_display() -> Iterator[Callable[[str], Listener]]:
    """A bar per file where there is a terminal, a line now and then where there is none."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:

        def begin(name: str) -> Listener:
            row = progress.add_task(name, total=None)
            return lambda done, total: progress.update(row, completed=done, total=total)

        yield begin


class _Lines:
    """Says how far a download is, every quarter of it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._next_share = 0.0

    def __call__(self, done_bytes: int, total_bytes: int | None) -> None:
        share = done_bytes / total_bytes if total_bytes else 0.0
        if share >= self._next_share:
            of = f" of {size(total_bytes)}, {share:.0%}" if total_bytes else ""
            typer.echo(f"{self._name}: {size(done_bytes)}{of}", err=True)
            self._next_share = share - share % LINE_EVERY_SHARE + LINE_EVERY_SHARE


def size(count: int | None) -> str:
    """Bytes for people; nothing where they are not known."""
    return "" if count is None else size_text(count)


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
