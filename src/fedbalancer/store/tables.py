"""The tables of a run: their rows in memory, and Parquet files that depend only on the rows."""

from __future__ import annotations

import io
import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbalancer.core.errors import RunFolderError
from fedbalancer.store.rows import (
    TABLES,
    ClientRow,
    EvalRow,
    RoundRow,
    Row,
    RunColumns,
    columns_of,
    flatten,
    nullable_in,
    schema_of,
)

if TYPE_CHECKING:
    import polars as pl


COLUMNS = "fedbalancer.columns"
"""Key of a file's metadata that explains its columns: {column: [unit, meaning]}, as JSON."""


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"needs a string, not {value!r}")
    return str(value)


def _number(value: Any) -> float:
    """Return a float. Every NaN becomes the NaN of a JSON reader, because Parquet keeps the bits of a NaN."""
    number = float(value)
    return math.nan if math.isnan(number) else number


_CONVERT: dict[type, Callable[[Any], Any]] = {int: operator.index, float: _number, str: _text}


def _or_none(convert: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else convert(value)


class Table:
    """Rows of one kind, stored by column. Further metrics of a row have columns of their own.

    Args:
        kind: Class of the rows.
        rows: The first rows.
    """

    def __init__(self, kind: type[Row], rows: Iterable[Row] = ()) -> None:
        self.schema = schema_of(kind)
        self._meanings: dict[str, tuple[str, str]] = dict(columns_of(kind))
        self._defaults = kind._field_defaults
        self._metrics: dict[str, list[float | None]] = {}
        self._rows = 0
        self._columns: dict[str, list[Any]] = {name: [] for name in self.schema}
        nullable = nullable_in(kind)
        convert = {name: _CONVERT[of] for name, of in self.schema.items()}
        self._convert: dict[str, Callable[[Any], Any]] = {
            name: partial(_or_none, to) if name in nullable else to for name, to in convert.items()
        }
        for row in rows:
            self.add(self.plain(row))

    def plain(self, row: Row) -> dict[str, Any]:
        """Return the row with plain Python values of the schema's types.

        Raises:
            TypeError: If a value does not fit its column.
        """
        plain = {}
        for name, value in flatten(row).items():
            convert: Callable[[Any], Any] = self._convert.get(name, _number)
            try:
                plain[name] = convert(value)
            except (TypeError, ValueError) as error:
                kind = self.schema.get(name, float).__name__
                raise TypeError(f"column {name!r} holds {kind}, not {value!r}") from error
        return plain

    def add(self, values: Mapping[str, Any]) -> None:
        """Add a row: what `plain` returned. A row of an earlier version may lack columns that have a default."""
        missing = self._defaults.keys() - values.keys()
        self.append((self._defaults[name] if name in missing else values[name]) for name in self.schema)
        for name in values.keys() - self.schema.keys() - self._metrics.keys():
            self._metrics[name] = [None] * (self._rows - 1)
        for name, column in self._metrics.items():
            column.append(values.get(name))

    def append(self, values: Iterable[Any]) -> None:
        """Add a row without further metrics: the values that `plain` returned."""
        self._rows += 1
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)

    def frame(self) -> pl.DataFrame:
        """Return all rows."""
        import polars as pl

        metrics = {name: self._metrics[name] for name in sorted(self._metrics)}
        return pl.DataFrame(self._columns | metrics, schema=self.schema | dict.fromkeys(metrics, float))

    def parquet(self, run: Mapping[str, Any] | None = None) -> bytes:
        """Return the table as a Parquet file whose metadata explain the columns.

        The same rows of the same run always give the same bytes.

        Args:
            run: Task, method and seed, which become the last columns.
        """
        import polars as pl

        file = io.BytesIO()
        of_run = (
            pl.lit((run or {}).get(name), dtype=pl.Int64 if kind is int else pl.String).alias(name)
            for name, kind in schema_of(RunColumns).items()
        )
        # Everything that affects the bytes is set here: defaults may depend on the machine or the version.
        self.frame().with_columns(of_run).write_parquet(
            file, compression="zstd", compression_level=3, statistics=True, row_group_size=2**20,
            metadata={COLUMNS: json.dumps(self._explain())},
        )  # fmt: skip
        return file.getvalue()

    def _explain(self) -> dict[str, tuple[str, str]]:
        """Return unit and meaning of every column, in their order."""
        of_run = {name: self._meanings[name] for name in RunColumns._fields}
        declared = {name: self._meanings[name] for name in self.schema}
        return declared | {name: ("metric", f"the metric {name}") for name in sorted(self._metrics)} | of_run


class RunTables:
    """The tables that grow with every round."""

    def __init__(self) -> None:
        self._rounds, self._evals, self._clients = Table(RoundRow), Table(EvalRow), Table(ClientRow)
        self.by_name = {"rounds": self._rounds, "evals": self._evals, "clients": self._clients}

    def entry(self, row: RoundRow | None, evals: Sequence[EvalRow], clients: Sequence[ClientRow]) -> dict[str, Any]:
        """Return the rows of one round as plain values, for `add` and for the journal."""
        return {
            "round": None if row is None else self._rounds.plain(row),
            "evals": [self._evals.plain(each) for each in evals],
            "clients": [list(self._clients.plain(each).values()) for each in clients],
        }

    def add(self, entry: Mapping[str, Any]) -> None:
        """Add the rows of one round."""
        if entry["round"] is not None:
            self._rounds.append(entry["round"][name] for name in self._rounds.schema)
        for evaluation in entry["evals"]:
            self._evals.add(evaluation)
        for values in entry["clients"]:
            self._clients.append(values)

    def frames(self) -> dict[str, pl.DataFrame]:
        """Return the tables by name."""
        return {name: table.frame() for name, table in self.by_name.items()}


def read_table(folder: Path, name: str, columns: Iterable[str]) -> pl.DataFrame:
    """Read a table of a run from its file.

    Args:
        folder: The run folder.
        name: Name of the table.
        columns: Columns that it must have. Others may be missing, as in tables of older versions.

    Raises:
        RunFolderError: If the file is missing or damaged, or has other columns.
    """
    import polars as pl

    path = folder / f"{name}.parquet"
    try:
        table = pl.read_parquet(path, glob=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise RunFolderError(f"{path} cannot be read ({error}); the run needs at least one finished round") from error
    kinds = schema_of(TABLES[name])
    for column in columns:
        if column not in table.columns or table.schema[column].is_numeric() != (kinds[column] in (int, float)):
            raise RunFolderError(f"{path} is not the table {name} of a run: no valid column {column!r}")
    return table
