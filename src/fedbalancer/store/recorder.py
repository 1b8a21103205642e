"""The recorder of a run without a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fedbalancer.core.types import Layout, ServerState, Weights
from fedbalancer.store.codec import Arrays
from fedbalancer.store.rows import ClassRow, ClientRow, EvalRow, PopulationRow, PrivacyRow, RoundRow
from fedbalancer.store.tables import RunTables, Table

if TYPE_CHECKING:
    import polars as pl

Restored = tuple[ServerState, dict[str, Any], Arrays]
"""The server's state, and the plain values and arrays of the engine."""


class MemoryRecorder:
    """Keeps the tables and the last state of a run in memory. It has the same methods as a `RunFolder`."""

    path = None

    def __init__(self) -> None:
        self._tables = RunTables()
        self._saved: Restored | None = None
        self._population: Table | None = None
        self._classes: Table | None = None
        self._privacy: Table | None = None

    def restore(self, template: ServerState) -> Restored | None:
        """Return the last saved state."""
        return self._saved

    def record(self, row: RoundRow | None, evals: Sequence[EvalRow], clients: Sequence[ClientRow]) -> None:
        """Record the rows of one round."""
        self._tables.add(self._tables.entry(row, evals, clients))

    @property
    def has_population(self) -> bool:
        """Return whether the population was recorded."""
        return self._population is not None

    def record_population(self, rows: Sequence[PopulationRow]) -> None:
        """Record one row per client."""
        self._population = Table(PopulationRow, rows)

    def record_classes(self, rows: Sequence[ClassRow]) -> None:
        """Record one row per class; nothing without rows."""
        self._classes = Table(ClassRow, rows) if rows else None

    def record_privacy(self, rows: Sequence[PrivacyRow]) -> None:
        """Record one row per client."""
        self._privacy = Table(PrivacyRow, rows)

    def checkpoint(
        self, state: ServerState, engine_json: Mapping[str, Any], engine_arrays: Mapping[str, NDArray[Any]]
    ) -> None:
        """Keep the state from which the run can continue."""
        self._saved = (state, dict(engine_json), dict(engine_arrays))

    def write_tables(self) -> None:
        """Do nothing."""

    def log(self, event: str, **fields: Any) -> None:
        """Do nothing."""

    def finish(
        self, status: str, why: str | None, weights: Weights | None = None, layout: Layout | None = None
    ) -> None:
        """Do nothing."""

    def frames(self) -> dict[str, pl.DataFrame]:
        """Return the tables by name."""
        return self._tables.frames()

    def population(self) -> pl.DataFrame | None:
        """Return the clients at the end of the run; None before the end."""
        return None if self._population is None else self._population.frame()

    def classes(self) -> pl.DataFrame | None:
        """Return the trained samples by class; None if they were not counted."""
        return None if self._classes is None else self._classes.frame()

    def privacy(self) -> pl.DataFrame | None:
        """Return the privacy loss by client; None if it was not counted."""
        return None if self._privacy is None else self._privacy.frame()
