"""Output of `fedbalancer data`: tables on stdout, progress on stderr."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.files import data_folder
from fedbalancer.core.types import IndexArray
from fedbalancer.data.catalogue.catalog import Check, Facts, Row
from fedbalancer.data.catalogue.summary import LabelCounts
from fedbalancer.data.source import Source
from fedbalancer.reporting.style import size_text

if TYPE_CHECKING:
    from fedbalancer.data.catalogue.install import Progress as Listener

LINE_EVERY_SHARE = 0.25
MOST_CLIENTS = 16
BAR_WIDTH = 30
BLOCKS, PLAIN = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
"""Bar heights for a label's frequency, with and without Unicode blocks."""


def print_list(rows: Sequence[Row]) -> None:
    """Print a table of the data sets, followed by their titles, licences and citations."""
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
    """Print a line per data set; errors go to stderr."""
    for check in checks:
        name = f"{check.task} ({check.variant})" if check.variant else check.task
        if check.facts is None:
            typer.echo(f"error: {name}: {check.error}", err=True)
        else:
            typer.echo(f"{name}: ok, {facts_text(check.facts)}")


def print_installed(task: str, source: Source, facts: Facts) -> None:
    """Print where the data is, and the next command.

    Args:
        task: Name of the task.
        source: The data set.
        facts: Its numbers of users, samples and labels.
    """
    where = ", ".join(map(str, source.paths))
    typer.echo(f"{task} ({source.variant}) is in {where}: {facts_text(facts)}")
    typer.echo(f"next: fedbalancer run {task} --variant {source.variant}")


def facts_text(facts: Facts) -> str:
    """Return the facts in one line."""
    return (
        f"{facts.users:,} users, {facts.samples:,} samples, {facts.test_samples:,} test samples, "
        f"{facts.labels:,} labels (scale {facts.scale})"
    )


@contextmanager
def download_display() -> Iterator[Callable[[str], Listener]]:
    """Provide progress callbacks for downloads: a bar per file in a terminal, otherwise lines."""
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
    """Prints the progress of a download after every quarter."""

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
    """Format a number of bytes; empty if unknown."""
    return "" if count is None else size_text(count)


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def picture_path(task: str, variant: str, out: Path | None) -> Path:
    """Return the path of the picture.

    Args:
        task: The task as it was typed.
        variant: The variant of its data.
        out: The requested path.

    Raises:
        BadSetting: If the requested path does not end in .png.
    """
    if out is not None:
        if out.suffix.lower() != ".png":
            raise BadSetting(f"--out {out} must end in .png, because the picture is a PNG")
        return out
    name = "-".join(part for part in (Path(task).stem if task.endswith(".toml") else task, variant) if part)
    return Path(f"data-{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.png")


def summary(task_labels: LabelCounts) -> dict[str, Any]:
    """Return the shown figures as plain values."""
    return {
        "task": task_labels.title,
        "clients": len(task_labels.clients),
        "samples": int(task_labels.sizes.sum()),
        "test_samples": task_labels.test_samples,
        "sizes": _spread(task_labels.sizes),
        "labels": task_labels.all_labels,
        "labels_per_client": _spread(task_labels.distinct) if task_labels.labels else None,
        "label_counts": dict(zip(task_labels.labels, task_labels.counts.sum(axis=0).tolist(), strict=True)),
    }


def print_label_counts(task_labels: LabelCounts) -> None:
    """Print totals, sizes, the frequency of each label, and the labels of some clients."""
    totals = summary(task_labels)
    typer.echo(
        f"{task_labels.title}: {totals['clients']:,} clients, {totals['samples']:,} samples, "
        f"{task_labels.test_samples:,} test samples, {task_labels.all_labels:,} labels"
    )
    typer.echo(f"samples per client: {_spread_text(totals['sizes'])}")
    if task_labels.labels:
        typer.echo(f"labels per client: {_spread_text(totals['labels_per_client'])}")
        _print_labels(task_labels)
    _print_clients(task_labels)


def _print_labels(task_labels: LabelCounts) -> None:
    counts = task_labels.counts.sum(axis=0)
    table = Table("label", "count", "share", "", "clients with it", box=None)
    for name, count, having in zip(
        task_labels.labels, counts.tolist(), (task_labels.counts > 0).sum(axis=0).tolist(), strict=True
    ):
        bar = "#" * round(BAR_WIDTH * count / max(1, counts.max()))
        table.add_row(name, f"{count:,}", f"{count / counts.sum():.1%}", bar, f"{having:,}")
    Console(markup=False, emoji=False, highlight=False).print(table)


def _print_clients(task_labels: LabelCounts) -> None:
    """Print a row per client, at most `MOST_CLIENTS`, with one character per label for its frequency in that client."""
    console = Console(markup=False, emoji=False, highlight=False)
    ramp = BLOCKS if "utf" in console.encoding.lower() else PLAIN
    rows = task_labels.space_clients(MOST_CLIENTS)
    if len(rows) < len(task_labels.clients):
        typer.echo(f"{len(rows)} of {len(task_labels.clients):,} clients, from the largest to the smallest:")
    span = f" {task_labels.labels[0]} to {task_labels.labels[-1]}" if task_labels.labels else ""
    table = Table("client", "samples", "different labels", f"labels{span}", box=None)
    for row in rows.tolist():
        spark = "".join(ramp[level] for level in _levels(task_labels.counts[row], len(ramp) - 1))
        different = str(task_labels.distinct[row]) if task_labels.labels else ""
        table.add_row(
            task_labels.clients[row],
            f"{task_labels.sizes[row]:,}",
            different,
            f"|{spark}|" if task_labels.labels else "",
        )
    console.print(table)


def _levels(counts: IndexArray, most: int) -> list[int]:
    """Return a bar height per label: 0 for none, `most` for the client's most frequent label."""
    top = max(1, int(counts.max(initial=0)))
    return [int(level) for level in np.ceil(counts / top * most)]


def _spread(values: IndexArray) -> dict[str, float]:
    return {"min": int(values.min()), "median": float(np.median(values)), "max": int(values.max())}


def _spread_text(spread: dict[str, float]) -> str:
    return f"min {spread['min']:,}, median {spread['median']:,g}, max {spread['max']:,}"
