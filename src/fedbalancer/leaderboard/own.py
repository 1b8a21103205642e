"""A user's own comparison enters a folder of results."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl

from fedbalancer.errors import BadSetting, RunFolderError
from fedbalancer.files import write_bytes, write_json
from fedbalancer.leaderboard.entries import ENTRY
from fedbalancer.leaderboard.tables import METHODS, OWN
from fedbalancer.report.folders import load
from fedbalancer.report.scores import score_comparison
from fedbalancer.report.stored import Results
from fedbalancer.report.values import Comparison, MethodScore
from fedbalancer.store import new_manifest

SCHEMA: dict[str, Any] = {
    "task": pl.String, "scale": pl.String, "variant": pl.String, "rule": pl.String, "target_share": pl.Float64,
    "method": pl.String, "seeds": pl.Int64, "reached": pl.Int64, "ratio_bound": pl.String,
} | {
    f"{what}{end}": pl.Float64 for what in ("ratio", "accuracy") for end in ("", "_low", "_high")
} | {
    "client_median": pl.Float64, "client_worst_decile": pl.Float64,
}  # fmt: skip


def add(folder: Path, results: Path, name: str) -> Path:
    """Score the comparison in `folder` and keep its table, marked as `name`'s, in the folder of `results`. What that
    name had there of the same comparison's folder is replaced."""
    name = name.strip()
    if not name or len(name) > 80 or not name.isprintable():
        raise BadSetting(f"name = {name!r} must be a few printable words, at most 80 characters")
    found = load(folder)
    if found.single:
        raise RunFolderError(f"{folder} is a single run; a leaderboard takes comparisons (`fedbalancer compare`)")
    comparison = score_comparison(found)
    if not comparison.seeds:
        raise RunFolderError(f"{folder}: nothing can be scored yet; {'; '.join(comparison.notes) or 'it has no runs'}")
    place = results / OWN / slug(f"{name}-{folder.resolve().name}")
    place.mkdir(parents=True, exist_ok=True)
    write_bytes(place / METHODS, _parquet(_rows(found, comparison)))
    report = folder / "report.html"
    link = os.path.relpath((report if report.is_file() else folder).resolve(), results.resolve())
    about = {
        "name": name,
        "added": datetime.now(UTC).isoformat(timespec="seconds"),
        "link": quote(Path(link).as_posix()),
    }
    write_json(place / ENTRY, {**about, "notes": list(comparison.notes), "versions": new_manifest()["versions"]})
    return place


def slug(name: str) -> str:
    """A name as a folder can have it.

    >>> slug("Ann's <b> ../lab")
    'Ann-s-b-lab'
    """
    return re.sub(r"[^\w]+", "-", name, flags=re.ASCII).strip("-")[:80] or "own"


def _rows(found: Results, comparison: Comparison) -> list[dict[str, Any]]:
    common = {"task": found.task, "scale": found.scale, "variant": found.variant, "rule": comparison.rule}
    return [
        {**common, "target_share": share, "method": method.method, **_scores(method, share)}
        for method in comparison.methods
        if method.scores
        for share in comparison.targets
    ]


def _scores(method: MethodScore, share: float) -> dict[str, Any]:
    reach, main = method.at(share), share == method.targets[0]
    ratio, accuracy = method.speedup if main else reach.ratio, method.accuracy
    return {
        "seeds": len(method.scores), "reached": reach.reached,
        "ratio": ratio.mean, "ratio_low": ratio.low, "ratio_high": ratio.high,
        "ratio_bound": getattr(ratio, "bound", ""),
        "client_median": method.fairness.median, "client_worst_decile": method.fairness.worst_decile,
        "accuracy": accuracy.mean, "accuracy_low": accuracy.low, "accuracy_high": accuracy.high,
    }  # fmt: skip


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    data = BytesIO()
    pl.DataFrame(rows, schema=SCHEMA).write_parquet(data)
    return data.getvalue()
