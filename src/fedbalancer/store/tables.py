"""The three tables of a run: their columns, their rows in memory, and Parquet files that depend on the rows alone."""

from __future__ import annotations

import io
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Schema = dict[str, type]
"""Column names and Python types, as polars takes them: int is Int64, float is Float64, str is String."""

ROUNDS_SCHEMA: Schema = {
    "round": int,
    "start_s": float,
    "end_s": float,
    "deadline_s": float,
    "loss_threshold": float,
    "loss_threshold_ratio": float,
    "deadline_ratio": float,
    "selected": int,
    "completed": int,
    "samples": int,
    "epochs": float,
    "utility": float,
    "down_bytes": int,
    "up_bytes": int,
}
"""A row per round; only `utility` may be null."""

EVALS_SCHEMA: Schema = {"round": int, "start_s": float, "clock_s": float, "accuracy": float, "loss": float}
"""A row per evaluation."""

CLIENTS_SCHEMA: Schema = {
    "round": int,
    "client": str,
    "download_s": float,
    "forward_s": float,
    "train_s": float,
    "upload_s": float,
    "paused_s": float,
    "epochs": float,
    "samples": int,
    "outcome": str,
}
"""A row per client and round."""

NULLABLE = frozenset({"utility"})


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"needs a string, not {value!r}")
    return str(value)


def _number(value: Any) -> float:
    """A float; every NaN becomes the one that a JSON reader makes, for NaNs can differ in bits that Parquet keeps."""
    number = float(value)
    return math.nan if math.isnan(number) else number


def _maybe_number(value: Any) -> float | None:
    return None if value is None else _number(value)


_CONVERT: dict[type, Callable[[Any], Any]] = {int: operator.index, float: _number, str: _text}


class Table:
    """Rows of one schema, kept by column."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._columns: dict[str, list[Any]] = {name: [] for name in schema}
        self._convert = {name: _maybe_number if name in NULLABLE else _CONVERT[kind] for name, kind in schema.items()}

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def row(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The row in the order of the columns, as the plain types of the schema."""
        if values.keys() != self.schema.keys():
            wrong = ", ".join(sorted(values.keys() ^ self.schema.keys()))
            raise ValueError(f"a row must have exactly the columns {', '.join(self.schema)}; differing: {wrong}")
        plain = {}
        for name, convert in self._convert.items():
            try:
                plain[name] = convert(values[name])
            except (TypeError, ValueError) as error:
                raise TypeError(f"column {name!r} holds {self.schema[name].__name__}, not {values[name]!r}") from error
        return plain

    def append(self, values: Iterable[Any]) -> None:
        """Add the values of what `row` returned."""
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)

    def parquet(self) -> bytes:
        """The table as a Parquet file; the same rows give the same bytes, however they came in."""
        import polars as pl

        file = io.BytesIO()
        frame = pl.DataFrame(self._columns, schema=self.schema)
        # All that decides the bytes is said here; the defaults may depend on the machine or the version.
        frame.write_parquet(file, compression="zstd", compression_level=3, statistics=True, row_group_size=2**20)
        return file.getvalue()
