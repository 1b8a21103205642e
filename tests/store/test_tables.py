"""Rows go in as they are, and the file depends on nothing but the rows."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fedbalancer.store.rows import TABLES, ClientRow, EvalRow, RoundRow, columns_of, columns_page, schema_of
from fedbalancer.store.tables import RunTables, Table

EVAL = EvalRow(round=1, start_s=0.5, clock_s=2.5, accuracy=0.25, loss=1.5)


def filled(count: int) -> Table:
    """Client rows that compress neither trivially nor identically."""
    numbers, table = random.Random(0), Table(ClientRow)
    floats = [name for name, kind in schema_of(ClientRow).items() if kind is float]
    for row in range(count):
        values: dict[str, Any] = {"round": row // 100, "client": f"c{row % 100}", "samples": row, "outcome": "done"}
        made = ClientRow(**values, **{name: numbers.random() for name in floats})
        table.append(table.plain(made).values())
    return table


@pytest.mark.parametrize("kind", [RoundRow, EvalRow, ClientRow])
def test_an_empty_table_has_the_columns_and_types_of_its_rows(kind: type[Any]) -> None:
    frame = pl.read_parquet(io.BytesIO(Table(kind).parquet()))
    types = {int: pl.Int64, float: pl.Float64, str: pl.String}
    of_run = {"task": str, "method": str, "seed": int}
    assert frame.columns == [*(name for name in kind._fields if name != "metrics"), *of_run]
    assert dict(frame.schema) == {name: types[of] for name, of in {**schema_of(kind), **of_run}.items()}
    assert frame.height == 0


def test_values_come_back_as_the_types_of_the_schema() -> None:
    table = Table(EvalRow)
    table.append(table.plain(EVAL._replace(round=np.int64(1), accuracy=np.float32(0.25), loss=math.inf)).values())
    table.append(table.plain(EVAL._replace(clock_s=3, loss=math.nan)).values())
    frame = pl.read_parquet(io.BytesIO(table.parquet()))
    assert frame.row(0) == (1, 0.5, 2.5, 0.25, math.inf, "rounds", *[None] * 8)
    assert math.isnan(frame["loss"][1])


@pytest.mark.parametrize("kind", TABLES.values())
def test_every_column_is_explained_with_its_unit_in_the_file_itself(kind: type[Any]) -> None:
    file = io.BytesIO(Table(kind).parquet({"task": "t", "method": "m", "seed": 3}))
    explained = json.loads(pl.read_parquet_metadata(file)["fedbalancer.columns"])
    assert list(explained) == pl.read_parquet(file).columns == list(columns_of(kind))
    for name, (unit, meaning) in explained.items():
        assert meaning
        assert unit == "s" or not name.endswith("_s")
        assert unit == "bytes" or not name.endswith("_bytes")


def test_every_row_says_of_which_run_it_is() -> None:
    table = Table(EvalRow)
    table.append(table.plain(EVAL).values())
    frame = pl.read_parquet(io.BytesIO(table.parquet({"task": "t", "method": "m[w=5]", "seed": 2**63 - 1})))
    assert frame.select("task", "method", "seed").rows() == [("t", "m[w=5]", 2**63 - 1)]


def test_any_nan_gives_the_same_bytes() -> None:
    """A NaN that went through the journal has lost its sign; Parquet would keep it."""
    files = []
    for nan in (math.nan, math.copysign(math.nan, -1)):
        table = Table(EvalRow)
        table.append(table.plain(EVAL._replace(loss=nan)).values())
        files.append(table.parquet())
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"round": 1.5}, "column 'round' holds int, not 1.5"),
        ({"loss": None}, "column 'loss' holds float, not None"),
        ({"accuracy": "high"}, "column 'accuracy' holds float, not 'high'"),
    ],
)
def test_wrong_values_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Table(EvalRow).plain(EVAL._replace(**change))


def test_an_entry_of_the_journal_survives_json_and_gives_the_same_tables() -> None:
    client = ClientRow(1, "ann", 0.1, 0.0, 0.2, 0.3, 0.0, 5.0, 12, "completed")
    tables, again = RunTables(), RunTables()
    entry = tables.entry(None, [EVAL, EVAL._replace(schedule="seconds")], [client])
    evals = [EVAL.to_dict(), {**EVAL.to_dict(), "schedule": "seconds"}]
    assert entry == {"round": None, "evals": evals, "clients": [list(client)]}
    for each, rows in ((tables, entry), (again, json.loads(json.dumps(entry)))):
        each.add(rows)
    assert [len(frame) for frame in tables.frames().values()] == [0, 2, 1]
    assert all(frame.equals(again.frames()[name]) for name, frame in tables.frames().items())


def test_further_metrics_have_columns_of_their_own_and_are_null_before_they_first_appear() -> None:
    tables, again = RunTables(), RunTables()
    rows = [EVAL, EVAL._replace(metrics={"mae": np.float32(0.5), "f1": 1}), EVAL._replace(metrics={"mae": math.nan})]
    entry = tables.entry(None, rows, [])
    for each, lines in ((tables, entry), (again, json.loads(json.dumps(entry)))):
        each.add(lines)
        assert each.frames()["evals"].columns[-2:] == ["f1", "mae"]
        assert each.frames()["evals"]["f1"].to_list() == [None, 1.0, None]
        assert each.frames()["evals"]["mae"].to_list()[:2] == [None, 0.5]
    file = io.BytesIO(tables.by_name["evals"].parquet({"task": "t", "method": "m", "seed": 3}))
    explained = json.loads(pl.read_parquet_metadata(file)["fedbalancer.columns"])
    assert list(explained) == pl.read_parquet(file).columns
    assert explained["f1"] == ["metric", "the metric f1"]


def test_a_journal_from_before_a_column_was_added_gives_its_default() -> None:
    tables = RunTables()
    tables.add({"round": None, "evals": [dict(list(EVAL._asdict().items())[:6])], "clients": []})
    assert tables.frames()["evals"].row(0, named=True) == EVAL.to_dict()


def test_same_rows_same_bytes_in_other_processes_with_other_threads() -> None:
    """Many rows, for a writer that splits its work among threads."""
    here = hashlib.sha256(filled(10_000).parquet()).hexdigest()
    script = (
        f"import sys, hashlib; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_tables; "
        "print(hashlib.sha256(test_tables.filled(10_000).parquet()).hexdigest())"
    )
    environment = os.environ | {
        "POLARS_MAX_THREADS": "1",
        "PYTHONHASHSEED": "7",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    there = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert there.stdout.strip() == here


def test_the_docs_explain_the_same_columns() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "columns.md"
    assert page.read_text() == columns_page()  # to update the page, write this text to it
