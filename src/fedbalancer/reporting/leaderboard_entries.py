"""The entries of a leaderboard: one method on one task, read from a folder of results.

Entries come from the tables that `fedbalancer paper` writes, from tables of ratios beside them (those of `canter`:
benchmarks/canter.py), and from comparisons that users added.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import polars as pl

from fedbalancer.core.errors import BadSetting, RunFolderError
from fedbalancer.core.files import write_bytes, write_json
from fedbalancer.core.metrics import ACCURACY
from fedbalancer.reporting.comparison import Comparison, MethodScore
from fedbalancer.reporting.results import Results, load
from fedbalancer.reporting.rule import is_fedavg
from fedbalancer.reporting.scores import score_comparison
from fedbalancer.reporting.tables import shows_interval
from fedbalancer.store import new_manifest

MAIN = "table1"
"""The item whose methods are shown in the tables of tasks and methods; all others are in the list of entries."""
OURS = "canter"
"""The project's own method."""
METHODS, OWN = "methods.parquet", "own"
"""The table of an item or of an added comparison, and the folder of added comparisons."""
BEST, ITEM, ENTRY = "best.parquet", "item.json", "entry.json"
NEEDED = ("task", "method")
SCHEMA: dict[str, Any] = {
    "task": pl.String, "scale": pl.String, "variant": pl.String, "rule": pl.String, "target_share": pl.Float64,
    "method": pl.String, "seeds": pl.Int64, "reached": pl.Int64, "ratio_bound": pl.String,
} | {
    f"{name}{end}": pl.Float64 for name in ("ratio", "accuracy") for end in ("", "_low", "_high")
} | {
    "client_median": pl.Float64, "client_worst_decile": pl.Float64,
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A method on a task.

    Attributes:
        task: Name of the task.
        method: Name of the method.
        scale: Scale of the task.
        variant: Variant of the task.
        rule: The scoring rule, with the metric if it is not the accuracy.
        target_share: The target as a share of the reference's final accuracy.
        seeds: Number of seeds.
        reached: Number of seeds on which the target was reached.
        ratio: Speed-up over the reference.
        ratio_low: Lower end of its 95% interval.
        ratio_high: Upper end of its 95% interval.
        ratio_bound: "<" or ">" if the speed-up is a bound.
        accuracy: Accuracy at the end of the budget.
        accuracy_low: Lower end of its 95% interval.
        accuracy_high: Upper end of its 95% interval.
        client_median: Median over clients of the final model's accuracy on their own data.
        client_worst_decile: The 10th percentile of that accuracy.
        item: The item or table it comes from.
        group: Group within the item.
        owner: Who added the comparison; empty for results of the project.
        link: Path of its source, relative to the folder of the leaderboard.
        measured: Date of the measurement.
        series: Empty for the seeds of the main item. Otherwise a description of other seeds, which have other
            references and therefore a separate board.
        first_seed: First seed of the series.
    """

    task: str
    method: str
    scale: str = ""
    variant: str = ""
    rule: str = ""
    target_share: float = 1.0
    seeds: int = 0
    reached: int = 0
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    ratio_bound: str = ""
    accuracy: float | None = None
    accuracy_low: float | None = None
    accuracy_high: float | None = None
    client_median: float | None = None
    client_worst_decile: float | None = None
    item: str = ""
    group: str = ""
    owner: str = ""
    link: str = ""
    measured: str = ""
    series: str = ""
    first_seed: int | None = None

    @property
    def verdict(self) -> Literal["faster", "slower", "open", "none"]:
        """Whether the seeds resolve that the method is faster or slower than the reference."""
        if self.ratio is None or (not self.ratio and not self.reached):  # by the paper's rule, 0 means never
            return "none"
        if self.ratio_low is not None and self.ratio_low > 1:
            return "faster"
        return "slower" if self.ratio_high is not None and self.ratio_high < 1 else "open"

    @property
    def is_grid_setting(self) -> bool:
        """Whether this is one of the settings that the main item searches for the best; hidden by default."""
        return self.item == MAIN and "[" in self.method

    @property
    def is_on_board(self) -> bool:
        return bool(self.owner or self.series) or self.item == MAIN

    @property
    def board(self) -> tuple[str, str, float, str]:
        """The key of its board: entries with the same scale, rule, target and series of seeds are comparable."""
        return self.scale, self.rule, self.target_share, self.series


def is_ours(method: str) -> bool:
    """Return whether a method is the project's own, with any settings and modifiers.

    Example:
        >>> [is_ours(name) for name in ("canter", "canter+late", "canter[clients=Uniform]", "temporal", "fedbalancer")]
        [True, True, True, False, False]
    """
    return method.replace("[", "+").partition("+")[0] == OURS


def seeds_text(first: int, last: int) -> str:
    """Format a range of seeds.

    Example:
        >>> seeds_text(10, 19), seeds_text(3, 3)
        ('seeds 10 to 19', 'seed 3')
    """
    return f"seeds {first} to {last}" if last > first else f"seed {first}"


def read_entries(folder: Path) -> list[Entry]:
    """Read all entries of a folder of results.

    Args:
        folder: The folder.

    Raises:
        RunFolderError: If there is no such folder, it contains no results, or a file is damaged.
    """
    if not folder.is_dir():
        raise RunFolderError(
            f"there is no folder {folder}; pass one written by `fedbalancer paper` or `leaderboard add`"
        )
    entries = [entry for file in sorted(folder.glob(f"*/{METHODS}")) for entry in _read_item(folder, file)]
    entries += read_ratios(folder)
    entries += [entry for file in sorted(folder.glob(f"{OWN}/*/{METHODS}")) for entry in _read_added(folder, file)]
    if not entries:
        raise RunFolderError(
            f"{folder} contains no results; `fedbalancer paper table1` and `leaderboard add` write some"
        )
    return entries


def _read_item(folder: Path, file: Path) -> list[Entry]:
    document = _read_json(file.with_name(ITEM))
    item = str(document.get("item") or file.parent.name)
    page = file.with_name(f"{item}.html")
    link = quote((page if page.is_file() else file.parent).relative_to(folder).as_posix())
    parts = document.get("parts")
    best = file.with_name(BEST)  # FedBalancer-A and -S, if the settings of Table 2 were run
    rows = _read_rows(file) + (_read_rows(best) if best.is_file() and _read_columns(best) >= set(NEEDED) else [])
    return [_make_entry(row, item=item, link=link, owner="", measured=_day(parts, str(row["task"]))) for row in rows]


def _read_added(folder: Path, file: Path) -> list[Entry]:
    document = _read_json(file.with_name(ENTRY))
    owner = str(document.get("name") or file.parent.name)
    link = str(document.get("link") or "")
    if not link or urlsplit(link).scheme or link.startswith("//"):  # only relative paths are allowed
        link = quote(file.parent.relative_to(folder).as_posix())
    measured = str(document.get("added") or "")[:10]
    return [_make_entry(row, item=OWN, link=link, owner=owner, measured=measured) for row in _read_rows(file)]


def _read_rows(file: Path) -> list[dict[str, Any]]:
    frame = _read_table(file)
    if absent := [name for name in NEEDED if name not in frame.columns]:
        raise RunFolderError(f"{file} is not a table of methods: it has no column {', '.join(absent)}")
    return frame.to_dicts()


def _make_entry(row: Mapping[str, Any], **more: str) -> Entry:
    """Make an entry from a row; other columns are ignored, and null values become defaults."""
    known = {field.name for field in fields(Entry)}
    return Entry(**{name: value for name, value in row.items() if name in known and value is not None} | more)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{file} cannot be read: {error}") from error
    return content if isinstance(content, dict) else {}


def _day(parts: Any, task: str) -> str:
    """Return the date on which a task of an item was measured; empty if unknown."""
    part = parts.get(task) if isinstance(parts, dict) else None
    return str(part.get("measured") or "")[:10] if isinstance(part, dict) else ""


def _read_table(file: Path) -> pl.DataFrame:
    # Opened first, because polars would interpret some characters of a path as a pattern.
    with _naming(file), file.open("rb") as opened:
        return pl.read_parquet(opened)


def _read_columns(file: Path) -> set[str]:
    with _naming(file), file.open("rb") as opened:
        return set(pl.read_parquet_schema(opened))


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Convert errors of reading into one that names the file."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RunFolderError(f"{file} cannot be read: {reason}") from error


OVER = "best fedavg"
WORDS, NUMBERS, COUNTS = ("comparison", "task", "method", "over"), ("ratio", "low", "high"), ("seeds", "reached")
NEVER_EMPTY = (*WORDS, "target_share", *COUNTS)
RATIO_SCHEMA: Mapping[str, Any] = MappingProxyType(
    dict.fromkeys((*WORDS, "bound"), pl.String)
    | dict.fromkeys((*NUMBERS, "target_share", "accuracy", "worst_decile"), pl.Float64)
    | dict.fromkeys(COUNTS, pl.Int64)
)
SCALE, RULE = "small", "fair"
"""Scale and rule of all tables of ratios."""
REFERENCES = frozenset({"fedavg+1t", "fedavg+2t", "fedavg+spc", "fedavg+wfa"})
"""The FedAvg variants of Table 1. Ratios over the best of fewer variants are not comparable."""
TUNED_SEEDS = 10
"""Table 1 uses seeds 0 to 9, which include the seeds that `canter` was developed on."""
SERIES = f"not used to develop {OURS}"
FIRST_SEED: Mapping[str, int] = MappingProxyType({
    **{f"canter/{name}": 10 for name in ("held-out", "peers", "unseen", "trials", "labels", "added", "pace", "power")},
    **{f"canter/seeds-15-to-19/{name}": 15 for name in ("held-out", "trials")},
    **{f"canter/{name}": 0 for name in ("parts", "gifts")},
})  # fmt: skip
"""First seed by table: the tables record only the number of seeds. Other tables are in the list of entries only."""


def read_ratios(folder: Path) -> list[Entry]:
    """Read the entries of all tables of ratios in a folder of results, one or two levels deep.

    A table of ratios is recognized by its columns. All its ratios over the best FedAvg variant are in the list of
    entries. A board shows only those that are comparable: seeds that `canter` was not developed on, an unchanged task,
    and the same FedAvg variants.

    Args:
        folder: The folder of results.

    Raises:
        RunFolderError: If a table is damaged.
    """
    files = sorted(file for depth in ("*", "*/*") for file in folder.glob(f"{depth}/*.parquet"))
    return [entry for file in files if _is_ratio_table(folder, file) for entry in _read_ratio_table(folder, file)]


def _is_ratio_table(folder: Path, file: Path) -> bool:
    """Return whether a file is a table of ratios; tables of items and of added comparisons are not."""
    others = file.relative_to(folder).parts[0] == OWN or file.with_name(METHODS).exists()
    return not others and file.is_file() and _read_columns(file) >= RATIO_SCHEMA.keys()


def _read_ratio_table(folder: Path, file: Path) -> Iterator[Entry]:
    item = file.relative_to(folder).with_suffix("").as_posix()
    page = file.with_suffix(".md")
    link = quote((page if page.is_file() else file.parent).relative_to(folder).as_posix())
    rows = _read_ratio_rows(file)
    variants = {(row["comparison"], row["method"]) for row in rows if is_fedavg(row["method"])}
    for row in rows:
        references = {method for comparison, method in variants if comparison == row["comparison"]}
        yield _make_ratio_entry(row, item, link, same_references=references == REFERENCES)


def _read_ratio_rows(file: Path) -> list[dict[str, Any]]:
    with _naming(file):
        frame = _read_table(file).select(pl.col(name).cast(kind) for name, kind in RATIO_SCHEMA.items())
        frame = frame.with_columns(pl.col(pl.Float64).fill_nan(None))
    if any(frame[name].null_count() for name in NEVER_EMPTY):
        raise RunFolderError(f"{file} is damaged: some rows have no value for {', '.join(NEVER_EMPTY)}")
    return frame.filter(pl.col("over") == OVER).to_dicts()


def _make_ratio_entry(row: Mapping[str, Any], item: str, link: str, same_references: bool) -> Entry:
    """Make an entry; one of a changed task has the name of its comparison as its group, instead of its seeds."""
    unchanged, seeds = row["comparison"] == row["task"], row["seeds"]
    first = FIRST_SEED.get(item) if unchanged else None
    seed_range = "" if first is None else seeds_text(first, first + seeds - 1)
    low, high = (row["low"], row["high"]) if shows_interval(seeds) else (None, None)
    return Entry(
        row["task"], row["method"], SCALE, rule=RULE, target_share=row["target_share"], seeds=seeds,
        reached=row["reached"], ratio=row["ratio"], ratio_low=low, ratio_high=high, ratio_bound=row["bound"] or "",
        accuracy=row["accuracy"], client_worst_decile=row["worst_decile"], item=item, link=link, first_seed=first,
        group=seed_range if unchanged else row["comparison"],
        series=SERIES if same_references and first is not None and first >= TUNED_SEEDS else "",
    )  # fmt: skip


def add_comparison(folder: Path, results: Path, name: str) -> Path:
    """Score a comparison and add its table to a folder of results.

    An earlier entry of the same name and comparison folder is replaced.

    Args:
        folder: The comparison folder.
        results: The folder of results; it is created if needed.
        name: Name of the owner, up to 80 printable characters.

    Returns:
        The folder of the new entry.

    Raises:
        BadSetting: If the name is invalid.
        RunFolderError: If the folder is not a comparison, or none of its runs can be scored.
    """
    name = name.strip()
    if not name or len(name) > 80 or not name.isprintable():
        raise BadSetting(f"name = {name!r} must be printable text of 1 to 80 characters")
    loaded = load(folder)
    if loaded.single:
        raise RunFolderError(f"{folder} is a single run; a leaderboard takes comparisons (`fedbalancer compare`)")
    comparison = score_comparison(loaded)
    if not comparison.seeds:
        raise RunFolderError(f"{folder}: nothing can be scored yet; {'; '.join(comparison.notes) or 'it has no runs'}")
    place = results / OWN / make_slug(f"{name}-{folder.resolve().name}")
    place.mkdir(parents=True, exist_ok=True)
    write_bytes(place / METHODS, _encode_rows(_comparison_rows(loaded, comparison)))
    report = folder / "report.html"
    link = os.path.relpath((report if report.is_file() else folder).resolve(), results.resolve())
    document = {
        "name": name,
        "added": datetime.now(UTC).isoformat(timespec="seconds"),
        "link": quote(Path(link).as_posix()),
    }
    write_json(place / ENTRY, {**document, "notes": list(comparison.notes), "versions": new_manifest()["versions"]})
    return place


def make_slug(name: str) -> str:
    """Convert a name to a folder name.

    Example:
        >>> make_slug("Ann's <b> ../lab")
        'Ann-s-b-lab'
    """
    return re.sub(r"[^\w]+", "-", name, flags=re.ASCII).strip("-")[:80] or "own"


def _comparison_rows(results: Results, comparison: Comparison) -> list[dict[str, Any]]:
    by_accuracy = comparison.metric == ACCURACY
    rule = comparison.rule if by_accuracy else f"{comparison.rule}, by {comparison.metric.title}"
    common = {"task": results.task, "scale": results.scale, "variant": results.variant, "rule": rule}
    without = {} if by_accuracy else dict.fromkeys(("accuracy", "accuracy_low", "accuracy_high"))
    return [
        {**common, "target_share": share, "method": method.method, **_score_values(method, share), **without}
        for method in comparison.methods
        if method.scores
        for share in comparison.targets
    ]


def _score_values(method: MethodScore, share: float) -> dict[str, Any]:
    reach, main = method.at(share), share == method.targets[0]
    ratio, accuracy = method.speedup if main else reach.ratio, method.accuracy
    return {
        "seeds": len(method.scores), "reached": reach.reached,
        "ratio": ratio.mean, "ratio_low": ratio.low, "ratio_high": ratio.high,
        "ratio_bound": getattr(ratio, "bound", ""),
        "client_median": method.fairness.median, "client_worst_decile": method.fairness.worst_decile,
        "accuracy": accuracy.mean, "accuracy_low": accuracy.low, "accuracy_high": accuracy.high,
    }  # fmt: skip


def _encode_rows(rows: list[dict[str, Any]]) -> bytes:
    data = BytesIO()
    pl.DataFrame(rows, schema=SCHEMA).write_parquet(data)
    return data.getvalue()
