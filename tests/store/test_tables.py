"""Rows go in as they are, and the file depends on nothing but the rows."""

from __future__ import annotations

import hashlib
import io
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

from fedbalancer.store.tables import CLIENTS_SCHEMA, EVALS_SCHEMA, ROUNDS_SCHEMA, Table

EVAL = {"round": 1, "start_s": 0.5, "clock_s": 2.5, "accuracy": 0.25, "loss": 1.5}


def filled(count: int) -> Table:
    """Client rows that compress neither trivially nor identically."""
    numbers, table = random.Random(0), Table(CLIENTS_SCHEMA)
    floats = [name for name, kind in CLIENTS_SCHEMA.items() if kind is float]
    for row in range(count):
        values: dict[str, Any] = {"round": row // 100, "client": f"c{row % 100}", "samples": row, "outcome": "done"}
        table.append(table.row(values | {name: numbers.random() for name in floats}).values())
    return table


@pytest.mark.parametrize("schema", [ROUNDS_SCHEMA, EVALS_SCHEMA, CLIENTS_SCHEMA])
def test_an_empty_table_has_its_columns_and_types(schema: dict[str, type]) -> None:
    frame = pl.read_parquet(io.BytesIO(Table(schema).parquet()))
    types = {int: pl.Int64, float: pl.Float64, str: pl.String}
    assert dict(frame.schema) == {name: types[kind] for name, kind in schema.items()}
    assert frame.height == 0


def test_values_come_back_as_the_types_of_the_schema() -> None:
    table = Table(EVALS_SCHEMA)
    table.append(table.row(EVAL | {"round": np.int64(1), "accuracy": np.float32(0.25), "loss": math.inf}).values())
    table.append(table.row(EVAL | {"clock_s": 3, "loss": math.nan}).values())
    frame = pl.read_parquet(io.BytesIO(table.parquet()))
    assert frame.row(0) == (1, 0.5, 2.5, 0.25, math.inf)
    assert math.isnan(frame["loss"][1])
    assert len(table) == 2


def test_any_nan_gives_the_same_bytes() -> None:
    """A NaN that went through the journal has lost its sign; Parquet would keep it."""
    files = []
    for nan in (math.nan, math.copysign(math.nan, -1)):
        table = Table(EVALS_SCHEMA)
        table.append(table.row(EVAL | {"loss": nan}).values())
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
        Table(EVALS_SCHEMA).row(EVAL | change)


def test_wrong_columns_are_named() -> None:
    with pytest.raises(ValueError, match="differing: extra, loss"):
        Table(EVALS_SCHEMA).row({name: 1 for name in EVAL if name != "loss"} | {"extra": 1})


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
