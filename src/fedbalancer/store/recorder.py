"""Where a run without a folder puts what it finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fedbalancer.core.types import Layout, ServerState, Weights
from fedbalancer.store.codec import Arrays
from fedbalancer.store.rows import ClassRow, ClientRow, EvalRow, PopulationRow, PrivacyRow, RoundRow
from fedbalancer.store.tables import RunTables, Table, class_table, population_table, privacy_table

if TYPE_CHECKING:
    import polars as pl

Restored = tuple[ServerState, dict[str, Any], Arrays]
"""The server's state, and the engine's own dictionary of plain values and arrays."""


class MemoryRecorder:
    """Keeps the tables and the last state of a run in memory. It has what a run asks of a `RunFolder`, and touches no
    disk."""

    path = None

    def __init__(self) -> None:
        self._tables = RunTables()
        self._saved: Restored | None = None
        self._population: Table | None = None
        self._classes: Table | None = None
        self._privacy: Table | None = None

    def restore(self, template: ServerState) -> Restored | None:
        """The state that was saved last, to go on from."""
        return self._saved

    def record(self, row: RoundRow | None, evals: Sequence[EvalRow], clients: Sequence[ClientRow]) -> None:
        """Keep the rows of one round."""
        self._tables.add(self._tables.entry(row, evals, clients))

    @property
    def has_population(self) -> bool:
        """Whether the population was recorded, when the run first ended."""
        return self._population is not None

    def record_population(self, rows: Sequence[PopulationRow]) -> None:
        """Keep a row per client."""
        self._population = population_table(rows)

    def record_classes(self, rows: Sequence[ClassRow]) -> None:
        """Keep a row per class; nothing where nobody counted."""
        self._classes = class_table(rows) if rows else None

    def record_privacy(self, rows: Sequence[PrivacyRow]) -> None:
        """Keep a row per client."""
        self._privacy = privacy_table(rows)

    def checkpoint(
        self, state: ServerState, engine_json: Mapping[str, Any], engine_arrays: Mapping[str, NDArray[Any]]
    ) -> None:
        """Keep all that is needed to go on from here."""
        self._saved = (state, dict(engine_json), dict(engine_arrays))

    def write_tables(self) -> None:
        """Nothing is written."""

    def log(self, event: str, **fields: Any) -> None:
        """Nothing is written."""

    def finish(
        self, status: str, why: str | None, weights: Weights | None = None, layout: Layout | None = None
    ) -> None:
        """Nothing is written."""

    def frames(self) -> dict[str, pl.DataFrame]:
        """The tables by name."""
        return self._tables.frames()

    def population(self) -> pl.DataFrame | None:
        """The clients at the first end of the run; None before it."""
        return None if self._population is None else self._population.frame()

    def classes(self) -> pl.DataFrame | None:
        """What was trained by class up to the first end of the run; None where nobody counted."""
        return None if self._classes is None else self._classes.frame()

    def privacy(self) -> pl.DataFrame | None:
        """What the clients gave away; None where nothing counts it."""
        return None if self._privacy is None else self._privacy.frame()
