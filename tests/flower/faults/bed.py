"""A federation of real processes in which things are made to go wrong."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedbalancer.flower.federation import Federation

HERE = Path(__file__).parent
APP = HERE / "app"
PATIENCE_S = 300.0
"""Longest wait for an event that must happen; after that it is a failure."""


def wait_for(what: str, found: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """Wait until `found` returns something, and return it."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        if result := found():
            return result
        time.sleep(0.1)
    raise TimeoutError(f"{what}: nothing of it in {patience_s:g} s")


def lines(file: Path) -> list[dict[str, Any]]:
    """The objects in a file with one in a line; a line that is still being written is left out."""
    if not file.exists():
        return []
    text = file.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


class Bed(Federation):
    """A federation whose clients keep journals, and whose processes can be killed at chosen moments.

    All rounds have the same deadline. The run begins with `least` clients."""

    def __init__(self, folder: Path, rounds: int, deadline_s: float, least: int) -> None:
        super().__init__(folder)
        self.rounds, self.deadline_s, self.least = rounds, deadline_s, least
        self.journal, self.runs = self.folder / "journal", self.folder / "runs"
        for made in (self.journal, self.runs):
            made.mkdir(exist_ok=True)
        self.parts: dict[str, int] = {}

    @property
    def run_folder(self) -> Path:
        return self.runs / "run"

    def link(self) -> None:
        """Start the SuperLink, or start it again on the database that it had."""
        self.superlink("--database", str(self.folder / "link.db"))

    def node(self, client: str, script: str = "", clock_s: float = 0.0) -> None:
        """Start the SuperNode of a client, or start it again."""
        self.supernode(client, self.config(client, script), self.surroundings(client, clock_s))

    def config(self, client: str, script: str) -> str:
        part = self.parts.setdefault(client, len(self.parts))
        return f'client-id="{client}" partition-id={part} script="{script}" journal="{self.journal}"'

    def surroundings(self, client: str, clock_s: float) -> dict[str, str]:
        folder = {"FEDBALANCER_CLIENT_FOLDER": str(self.folder / f"memory-{client}")}
        return folder | ({"PYTHONPATH": str(HERE / "clock"), "CLOCK_SHIFT_S": str(clock_s)} if clock_s else {})

    def submit(self) -> None:
        """Start the run, or go on with it."""
        self.run(
            APP, "--run-config",
            f'folder="{self.runs}" rounds={self.rounds} deadline={float(self.deadline_s)} least={self.least}',
        )  # fmt: skip

    def events(self, event: str, **wanted: Any) -> list[dict[str, Any]]:
        """Return the events of one kind."""
        found = [line for line in lines(self.run_folder / "log.jsonl") if line["event"] == event]
        return [line for line in found if all(line.get(name) == value for name, value in wanted.items())]

    def did(self, client: str, *what: str) -> list[dict[str, Any]]:
        """Return a client's journal entries of these kinds."""
        return [line for line in lines(self.journal / f"{client}.jsonl") if line["what"] in what]

    def finish(self) -> None:
        """Wait for the end of the run, however it ends."""
        patience_s = PATIENCE_S + self.rounds * (self.deadline_s + 10.0)
        wait_for("the end of the run", lambda: self.status() not in ("", "running"), patience_s)

    def status(self) -> str:
        manifest = self.run_folder / "manifest.json"
        return str(json.loads(manifest.read_text())["status"]) if manifest.exists() else ""

    def kill(self, name: str) -> None:
        """SIGKILL to a SuperNode with all that it started, as when a phone is switched off."""
        self.stop(name, signal.SIGKILL)

    def kill_only(self, name: str) -> None:
        """SIGKILL to one process; those that it started are left to themselves."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def kill_server_app(self) -> None:
        """SIGKILL to the ServerApp, which the SuperLink started."""
        found = _processes("flwr-serverapp", f"127.0.0.1:{self.port}")
        assert found, "no ServerApp runs"
        for process in found:
            os.kill(process, signal.SIGKILL)

    def lock_database(self, seconds: float) -> None:
        """Hold the lock of the SuperLink's database."""
        database = sqlite3.connect(self.folder / "link.db", timeout=PATIENCE_S, isolation_level=None)
        with contextlib.closing(database):
            database.execute("BEGIN IMMEDIATE")
            time.sleep(seconds)


def _processes(*words: str) -> list[int]:
    """Processes that have all of these words in their command line."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if all(word.encode() in file.read_bytes() for word in words):
                found.append(int(file.parent.name))
    return found
