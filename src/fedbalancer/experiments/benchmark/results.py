"""The results of the benchmark: tables of all runs and trials, which can also be continued on another computer."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from fedbalancer.core.errors import RunFolderError
from fedbalancer.core.files import readable, write_bytes, write_json
from fedbalancer.experiments.benchmark.scoring import FILES, read_records, write_record
from fedbalancer.experiments.benchmark.suite import FEDAVG, GIFTS, Cell, Suite, hash_data
from fedbalancer.experiments.benchmark.tuning import TUNED, Tuned, read_tuned, write_tuned
from fedbalancer.reporting.benchmark import PROTOCOL, RUNS, TRIALS
from fedbalancer.store.contents import make_folder

LISTS = ("sample_passes", "device_s", "down_bytes", "up_bytes")
"""Columns of costs along the grid, which have 32 bits."""
CHECKSUMS = {file: f"sha256_{file.partition('.')[0]}" for file in FILES}
"""Column of each file of a run whose bytes are compared."""


def collect(suite: Suite, out: Path, results: Path, owner: str = "", untuned: Sequence[str] = ()) -> None:
    """Add the finished runs and trials of a folder to the results.

    Args:
        suite: The suite.
        out: Folder of all runs.
        results: Folder of the results. Rows of other runs stay.
        owner: Owner of the methods; "" for this project.
        untuned: Canonical names of methods that were scored without tuning. Names that the results have stay.

    Raises:
        RunFolderError: If the protocol of the results is damaged.
    """
    runs: list[dict[str, Any]] = []
    trials: list[dict[str, Any]] = []
    for cell in suite.cells:
        records = read_records(out / cell.name)
        runs += [_row_of_run(record, owner) for record in records]
        data = records[0]["data"] if records else None
        for tuned in read_tuned(out / cell.name / TUNED).values():
            own = {"suite": suite.name, "cell": cell.name, "owner": owner, "data": data}
            trials += [own | row for row in _rows_of_trials(tuned)]
    make_folder(results)
    _merge(results / RUNS, runs, ("suite", "cell", "method", "seed", "owner"))
    _merge(results / TRIALS, trials, ("suite", "cell", "method", "number", "owner"))
    _write_protocol(suite, results / PROTOCOL, owner, untuned)


def _write_protocol(suite: Suite, file: Path, owner: str, untuned: Sequence[str]) -> None:
    """Write the protocol of the project's runs. An owner's runs only add their untuned methods to it."""
    before = _read_protocol(file)
    protocol = {
        "suite": suite.name, "digest": suite.digest, "trials": suite.trials, "tuning_seeds": suite.tuning_seeds,
        "seeds": suite.seeds, "extend": suite.extend, "targets": suite.targets, "gifts": GIFTS,
        "cells": [{"name": cell.name, "task": cell.task, "title": cell.title} for cell in suite.cells],
    }  # fmt: skip
    names = sorted({*before.get("untuned", ()), *untuned})
    write_json(file, readable((before if owner and before else protocol) | {"untuned": names}))


def _read_protocol(file: Path) -> dict[str, Any]:
    """Return the protocol of the results; empty if there is none."""
    try:
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{file} is damaged: {error}; delete it, and run the benchmark again") from error


def restore(cell: Cell, suite: Suite, results: Path, out: Path, owner: str = "") -> None:
    """Write the trials and scored runs that the results have into the cell's folder of runs, if it does not have them.

    The benchmark then continues from them: nothing that they have runs again. Results of other data are left out.

    Args:
        cell: The cell.
        suite: The suite.
        results: Folder of the results. If it does not exist, nothing happens.
        out: Folder of the cell.
        owner: Owner of the methods; "" for this project.

    Raises:
        MissingData: If the data of the cell are not on this computer.
    """
    own = {"suite": suite.name, "cell": cell.name, "owner": owner}
    tables = [_read(results / name, own) for name in (RUNS, TRIALS)]
    if all(table.is_empty() for table in tables):
        return
    data = hash_data(cell.base(FEDAVG[0]).load_task())
    runs, trials = (table.filter(data=data) if "data" in table.columns else table.clear() for table in tables)
    known = read_tuned(out / TUNED)
    for rows in trials.sort("number").partition_by("method"):
        tuned = _tuned_of_rows(rows.to_dicts())
        if tuned.method not in known:
            make_folder(out)
            write_tuned(out / TUNED, {tuned.method: tuned})
    for row in runs.to_dicts():
        write_record(out, _record_of_row(row), replace=False)


def _read(file: Path, own: Mapping[str, str]) -> pl.DataFrame:
    return pl.read_parquet(file).filter(**own) if file.is_file() else pl.DataFrame()


def _rows_of_trials(tuned: Tuned) -> list[dict[str, Any]]:
    targets = {"tuning_seeds": list(tuned.targets), "targets": list(tuned.targets.values())}
    return [
        {"method": tuned.method, "number": trial["number"], "trial": trial["method"], "state": trial["state"],
         "why": trial["why"], "value": trial["value"], "values": trial["values"],
         "chosen": trial["method"] == tuned.chosen, **targets}
        for trial in tuned.trials
    ]  # fmt: skip


def _tuned_of_rows(rows: Sequence[Mapping[str, Any]]) -> Tuned:
    """Return a tuned method from its trials: the opposite of `_rows_of_trials`."""
    first = rows[0]
    trials = [
        {"number": row["number"], "method": row["trial"], "state": row["state"], "value": row["value"],
         "values": row["values"], "why": row["why"]}
        for row in rows
    ]  # fmt: skip
    chosen = [row["trial"] for row in rows if row["chosen"]]
    targets = dict(zip(first["tuning_seeds"], first["targets"], strict=True))
    return Tuned(first["method"], chosen[0] if chosen else first["method"], tuple(trials), targets)


def _row_of_run(record: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return the row of a record, with mappings as columns of text."""
    row = {key: value for key, value in record.items() if key not in ("final_run", "kernels", "files", "extension")}
    extension = record.get("extension") or {}
    files = record.get("files") or {}
    return {
        **row, "owner": owner, "processor": (record.get("kernels") or {}).get("processor", ""),
        "target": extension.get("target"), "extended_s": extension.get("budget_s"),
        **{CHECKSUMS[name]: files[name] for name in files},
    }  # fmt: skip


def _record_of_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a run from its row: the opposite of `_row_of_run`."""
    own = ("owner", "processor", "target", "extended_s", *CHECKSUMS.values())
    extension = {"budget_s": row["extended_s"], "target": row["target"]}
    return {
        **{key: value for key, value in row.items() if key not in own},
        "final_run": True, "kernels": {"processor": row["processor"]},
        "files": {name: row[column] for name, column in CHECKSUMS.items()},
        "extension": extension if row["target"] is not None else None,
    }  # fmt: skip


def _merge(file: Path, rows: Sequence[Mapping[str, Any]], key: Sequence[str]) -> None:
    """Write rows to a Parquet file, besides the rows that it has with other keys."""
    if not rows:
        return
    frame = pl.DataFrame(list(rows), infer_schema_length=None)
    frame = frame.with_columns(pl.col(name).cast(pl.List(pl.Float32)) for name in LISTS if name in frame.columns)
    if file.is_file():
        before = pl.read_parquet(file)
        frame = pl.concat(
            [before.join(frame, on=list(key), how="anti", nulls_equal=True), frame], how="diagonal_relaxed"
        )
    buffer = io.BytesIO()
    frame.sort(list(key)).write_parquet(buffer, compression="zstd")
    write_bytes(file, buffer.getvalue())
