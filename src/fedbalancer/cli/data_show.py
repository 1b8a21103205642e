"""Who has what, in words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import IndexArray
from fedbalancer.data.catalogue.summary import LabelCounts

MOST_CLIENTS = 16
BAR_WIDTH = 30
BLOCKS, PLAIN = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
"""How much there is of a label, for screens that can show blocks and for those that cannot."""


def picture_path(task: str, variant: str, out: Path | None) -> Path:
    """Where the picture goes."""
    if out is not None:
        if out.suffix.lower() != ".png":
            raise BadSetting(f"--out is {out}, but the picture is a PNG: let the name end in .png")
        return out
    name = "-".join(part for part in (Path(task).stem if task.endswith(".toml") else task, variant) if part)
    return Path(f"data-{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.png")


def summary(held: LabelCounts) -> dict[str, Any]:
    """What is shown, as plain values."""
    return {
        "task": held.title,
        "clients": len(held.clients),
        "samples": int(held.sizes.sum()),
        "test_samples": held.test_samples,
        "sizes": _spread(held.sizes),
        "labels": held.all_labels,
        "labels_per_client": _spread(held.distinct) if held.labels else None,
        "label_counts": dict(zip(held.labels, held.counts.sum(axis=0).tolist(), strict=True)),
    }


def print_holdings(held: LabelCounts) -> None:
    """One screen: totals, sizes, what there is of each label, and the labels of some clients."""
    totals = summary(held)
    typer.echo(
        f"{held.title}: {totals['clients']:,} clients, {totals['samples']:,} samples, "
        f"{held.test_samples:,} to test on, {held.all_labels:,} labels"
    )
    typer.echo(f"samples per client: {_words(totals['sizes'])}")
    if held.labels:
        typer.echo(f"labels per client: {_words(totals['labels_per_client'])}")
        _print_labels(held)
    _print_clients(held)


def _print_labels(held: LabelCounts) -> None:
    counts = held.counts.sum(axis=0)
    table = Table("label", "count", "share", "", "clients that have it", box=None)
    for name, count, having in zip(held.labels, counts.tolist(), (held.counts > 0).sum(axis=0).tolist(), strict=True):
        bar = "#" * round(BAR_WIDTH * count / max(1, counts.max()))
        table.add_row(name, f"{count:,}", f"{count / counts.sum():.1%}", bar, f"{having:,}")
    Console(markup=False, emoji=False, highlight=False).print(table)


def _print_clients(held: LabelCounts) -> None:
    """All clients, or some from the largest to the smallest; a character per label, as high as the label is frequent
    among the client's own."""
    console = Console(markup=False, emoji=False, highlight=False)
    ramp = BLOCKS if "utf" in console.encoding.lower() else PLAIN
    rows = held.space_clients(MOST_CLIENTS)
    if len(rows) < len(held.clients):
        typer.echo(f"{len(rows)} of {len(held.clients):,} clients, from the largest to the smallest:")
    span = f" {held.labels[0]} to {held.labels[-1]}" if held.labels else ""
    table = Table("client", "samples", "different labels", f"labels{span}", box=None)
    for row in rows.tolist():
        spark = "".join(ramp[level] for level in _levels(held.counts[row], len(ramp) - 1))
        different = str(held.distinct[row]) if held.labels else ""
        table.add_row(held.clients[row], f"{held.sizes[row]:,}", different, f"|{spark}|" if held.labels else "")
    console.print(table)


def _levels(counts: IndexArray, most: int) -> list[int]:
    """From 0 for none to `most` for the client's most frequent label."""
    top = max(1, int(counts.max(initial=0)))
    return [int(level) for level in np.ceil(counts / top * most)]


def _spread(values: IndexArray) -> dict[str, float]:
    return {"min": int(values.min()), "median": float(np.median(values)), "max": int(values.max())}


def _words(spread: dict[str, float]) -> str:
    return f"min {spread['min']:,}, median {spread['median']:,g}, max {spread['max']:,}"
