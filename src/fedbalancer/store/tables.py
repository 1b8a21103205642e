"""The tables of a run: their rows in memory, and Parquet files that depend on the rows alone."""

from __future__ import annotations

import io
import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fedbalancer.store.rows import (
    RUN,
    TABLES,
    ClassRow,
    ClientRow,
    EvalRow,
    PopulationRow,
    PrivacyRow,
    RoundRow,
    Row,
    nullable_in,
    schema_of,
)

if TYPE_CHECKING:
    import polars as pl


COLUMNS = "fedbalancer.columns"
"""The key of a file's metadata under which its columns are explained: {column: [unit, meaning]}, as JSON."""
NAMES: dict[type[Row], str] = {
    RoundRow: "rounds", EvalRow: "evals", ClientRow: "clients", PopulationRow: "population", ClassRow: "classes",
    PrivacyRow: "privacy",
}  # fmt: skip


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"needs a string, not {value!r}")
    return str(value)


def _number(value: Any) -> float:
    """A float; every NaN becomes the one that a JSON reader makes, for NaNs can differ in bits that Parquet keeps."""
    number = float(value)
    return math.nan if math.isnan(number) else number


_CONVERT: dict[type, Callable[[Any], Any]] = {int: operator.index, float: _number, str: _text}


def _or_none(convert: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else convert(value)


class Table:
    """Rows of one kind, kept by column."""

    def __init__(self, row: type[Row]) -> None:
        self.schema = schema_of(row)
        self._explained = json.dumps(TABLES[NAMES[row]])
        self._defaults: dict[str, Any] = row._field_defaults
        self._columns: dict[str, list[Any]] = {name: [] for name in self.schema}
        nullable = nullable_in(row)
        convert = {name: _CONVERT[kind] for name, kind in self.schema.items()}
        self._convert = {name: partial(_or_none, to) if name in nullable else to for name, to in convert.items()}

    def plain(self, row: Row) -> dict[str, Any]:
        """The row with plain values of the schema's types, without NumPy's; a `TypeError` names the column that does
        not fit."""
        plain = {}
        for (name, convert), value in zip(self._convert.items(), row, strict=True):
            try:
                plain[name] = convert(value)
            except (TypeError, ValueError) as error:
                raise TypeError(f"column {name!r} holds {self.schema[name].__name__}, not {value!r}") from error
        return plain

    def append(self, values: Iterable[Any]) -> None:
        """Add the values of what `plain` returned."""
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)

    def take(self, named: Mapping[str, Any]) -> None:
        """Add a row by the names of its columns; one of an older version lacks those that came later."""
        self.append((self._defaults | dict(named))[name] for name in self.schema)

    def later(self, columns: int) -> list[Any]:
        """The values of the columns that came after the first so many, in a row of an older version."""
        return [self._defaults[name] for name in list(self.schema)[columns:]]

    def frame(self) -> pl.DataFrame:
        """All rows."""
        import polars as pl

        return pl.DataFrame(self._columns, schema=self.schema)

    def parquet(self, run: Mapping[str, Any] | None = None) -> bytes:
        """The table as a Parquet file; the same rows of the same `run` (task, method, seed) give the same bytes,
        however they came in. The file's own metadata explain its columns."""
        import polars as pl

        file = io.BytesIO()
        named = {name: (run or {}).get(name) for name in RUN}
        whole = self.frame().with_columns(
            pl.lit(value, dtype=pl.Int64 if name == "seed" else pl.String).alias(name) for name, value in named.items()
        )
        # All that decides the bytes is said here; the defaults may depend on the machine or the version.
        whole.write_parquet(
            file, compression="zstd", compression_level=3, statistics=True, row_group_size=2**20,
            metadata={COLUMNS: self._explained},
        )  # fmt: skip
        return file.getvalue()


class RunTables:
    """The tables of a run that are filled round by round."""

    def __init__(self) -> None:
        self._rounds, self._evals, self._clients = Table(RoundRow), Table(EvalRow), Table(ClientRow)
        self.by_name = {"rounds": self._rounds, "evals": self._evals, "clients": self._clients}

    def entry(self, row: RoundRow | None, evals: Sequence[EvalRow], clients: Sequence[ClientRow]) -> dict[str, Any]:
        """The rows of one round as plain values: what `add` takes and the journal keeps."""
        return {
            "round": None if row is None else self._rounds.plain(row),
            "evals": [self._evals.plain(each) for each in evals],
            "clients": [list(self._clients.plain(each).values()) for each in clients],
        }

    def add(self, entry: Mapping[str, Any]) -> None:
        """Take up the rows of one round, also as an older version wrote them: with one evaluation at most."""
        if entry["round"] is not None:
            self._rounds.take(entry["round"])
        for evaluation in entry["evals"] if "evals" in entry else filter(None, [entry["eval"]]):
            self._evals.take(evaluation)
        for values in entry["clients"]:
            self._clients.append([*values, *self._clients.later(len(values))])

    def frames(self) -> dict[str, pl.DataFrame]:
        """The tables by name."""
        return {name: table.frame() for name, table in self.by_name.items()}


def population_table(rows: Iterable[PopulationRow]) -> Table:
    """The table of a run's clients."""
    return _filled(PopulationRow, rows)


def class_table(rows: Iterable[ClassRow]) -> Table:
    """The table of what was trained by class."""
    return _filled(ClassRow, rows)


def privacy_table(rows: Iterable[PrivacyRow]) -> Table:
    """The table of what a run's clients gave away."""
    return _filled(PrivacyRow, rows)


def _filled(kind: type[Row], rows: Iterable[Row]) -> Table:
    table = Table(kind)
    for row in rows:
        table.append(table.plain(row).values())
    return table
