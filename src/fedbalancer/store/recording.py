"""What a run has recorded so far: rows in memory and in the journal, and checkpoints that fit them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedbalancer.store.checkpoint import Checkpoints
from fedbalancer.store.codec import Arrays, decode_state, encode_state, from_jsonable, to_jsonable
from fedbalancer.store.journal import Journal, open_at
from fedbalancer.store.tables import CLIENTS_SCHEMA, EVALS_SCHEMA, ROUNDS_SCHEMA, Table
from fedbalancer.types import ServerState

Restored = tuple[ServerState, dict[str, Any], Arrays]
"""The server's state, and the engine's own JSON-able dictionary and arrays."""

Row = Mapping[str, Any]

_SERVER, _ENGINE = "server.", "engine."


class Recording:
    """The checkpoint folder of a run and the rows that belong to it. Begins with `restart` or `restore`."""

    def __init__(self, folder: Path) -> None:
        self.checkpoints = Checkpoints(folder)
        self._journal: Journal | None = None
        self._reset_tables()

    @property
    def tables(self) -> dict[str, Table]:
        """The tables by the names of their files."""
        return {"rounds": self._rounds, "evals": self._evals, "clients": self._clients}

    @property
    def begun(self) -> bool:
        """Whether the tables hold what the run has recorded."""
        return self._journal is not None

    def restart(self) -> None:
        """Begin with no rows."""
        self._open_journal(0, None)

    def record(self, round_row: Row | None, eval_row: Row | None, client_rows: Sequence[Row]) -> None:
        """Keep the rows of one round, in memory and in the journal."""
        entry = {
            "round": None if round_row is None else self._rounds.row(round_row),
            "eval": None if eval_row is None else self._evals.row(eval_row),
            "clients": [list(self._clients.row(row).values()) for row in client_rows],
        }
        self._opened().append(entry)
        self._remember(entry)

    def checkpoint(self, state: ServerState, engine_json: Row, engine_arrays: Mapping[str, NDArray[Any]]) -> None:
        """Save state and rows: the journal first, because the checkpoint refers to it."""
        journal = self._opened()
        journal.flush()
        server, server_arrays = encode_state(state)
        blob = {
            "journal": {"size": journal.size, "sha256": journal.sha256},
            "server": server,
            "engine": to_jsonable(engine_json),
        }
        arrays = {_SERVER + name: array for name, array in server_arrays.items()}
        arrays |= {_ENGINE + name: array for name, array in engine_arrays.items()}
        self.checkpoints.save(state.round, blob, arrays)

    def restore(self, template: ServerState) -> Restored | None:
        """The last whole checkpoint, with the rows cut back to it; None, and no rows, if there is none."""
        loaded = self.checkpoints.load_latest()
        if loaded is None:
            self.restart()
            return None
        blob, arrays = loaded
        state = decode_state(blob["server"], _under(_SERVER, arrays), template)
        self._open_journal(**blob["journal"])
        return state, from_jsonable(blob["engine"]), _under(_ENGINE, arrays)

    def close(self) -> None:
        """Close the journal."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _reset_tables(self) -> None:
        self._rounds, self._evals, self._clients = Table(ROUNDS_SCHEMA), Table(EVALS_SCHEMA), Table(CLIENTS_SCHEMA)

    def _open_journal(self, size: int, sha256: str | None) -> None:
        self.close()
        self._journal, entries = open_at(self.checkpoints.folder, size, sha256)
        self._reset_tables()
        for entry in entries:
            self._remember(entry)

    def _remember(self, entry: Row) -> None:
        if entry["round"] is not None:
            self._rounds.append(entry["round"].values())
        if entry["eval"] is not None:
            self._evals.append(entry["eval"].values())
        for values in entry["clients"]:
            self._clients.append(values)

    def _opened(self) -> Journal:
        if self._journal is None:
            raise RuntimeError("nothing can be recorded before restore() was called on an opened run folder")
        return self._journal


def _under(prefix: str, arrays: Arrays) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
