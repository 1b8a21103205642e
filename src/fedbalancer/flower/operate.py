"""The status of a run on Flower, from its folder, while it runs or later.

This module does not need flwr, so it works on a copy of the folder on any machine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbalancer.core.errors import RunFolderError
from fedbalancer.core.files import FolderLock
from fedbalancer.store.contents import CHECKPOINT, PRIVACY, read_events, read_manifest
from fedbalancer.store.journal import JournalReader
from fedbalancer.store.rows import JOINED, TABLES, nullable_in, schema_of
from fedbalancer.store.tables import read_table

if TYPE_CHECKING:
    import polars as pl

WINDOW = 20
"""Default number of last rounds that the status describes."""
OVERDUE = 3
"""A round that lasts this many deadlines is overdue."""
FALL = 0.05
"""A fall of the accuracy below its best value that the status mentions."""
MANY_INVALID = 0.2
"""Share of invalid replies that the status mentions."""
SHOWN = 5
"""Clients and messages in a list."""
REPORTED = ("completed", JOINED)
"""Outcomes of clients whose report counts."""


def flower_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a run on Flower.

    Args:
        folder: The run folder.

    Raises:
        RunFolderError: There is no run in the folder, or a simulated one.
    """
    manifest = read_manifest(folder)
    if manifest.get("engine") != "flower":
        raise RunFolderError(f"{folder} is not a run on Flower; use fedbalancer report {folder}")
    return manifest


def run_status(folder: Path | str, window: int = WINDOW) -> dict[str, Any]:
    """Return the state of a run on Flower, in plain values.

    Args:
        folder: The run folder, or a copy of it.
        window: Number of last rounds for `recent` and `advice`.

    Returns:
        Status, last round, clients, dropped and invalid reports, accuracy, privacy loss, disk space, and `advice`: what
        needs attention, one sentence each.

    Raises:
        RunFolderError: There is no run in the folder.
    """
    folder = Path(folder)
    manifest = flower_manifest(folder)
    frames, events = read_tables(folder), read_events(folder)
    rounds, clients = frames["rounds"], frames["clients"]
    last = rounds.row(-1, named=True) if rounds.height else None
    first_recent = rounds["round"][-window] if rounds.height > window else 1
    recent = clients.filter(clients["round"] >= first_recent)
    status = {
        "folder": str(folder), "task": (manifest.get("task") or {}).get("name"), "method": manifest.get("method"),
        "seed": manifest.get("seed"), "status": manifest.get("status"), "why": manifest.get("why"),
        "server_is_running": _is_locked(folder) if manifest.get("status") == "running" else False,
        "started": manifest.get("started"), "versions": manifest.get("versions", {}),
        "rounds_done": rounds.height, "rounds_planned": manifest.get("rounds"),
        "empty_rounds": int((rounds["completed"] == 0).sum()),
        "last_round": last, "last_round_age_s": _age_s(events, "round closed"),
        "open_round": _open_round(events, rounds.height),
        "down_bytes": int(rounds["down_bytes"].sum()), "up_bytes": int(rounds["up_bytes"].sum()),
        "clients": _clients(clients, rounds.height),
        "outcomes": dict(Counter(clients["outcome"].to_list())),
        "recent": {"rounds": min(window, rounds.height), "outcomes": dict(Counter(recent["outcome"].to_list()))},
        "invalid": [_fields(each, "time", "round", "client", "why") for each in events if each["event"] == "invalid"],
        "suspended": _suspended(events, rounds.height),
        "restarts": sum(event["event"] == "resumed" and "round" not in event for event in events),
        "failed_trackers": [_fields(event, "sink", "why") for event in events if event["event"] == "sink failed"],
        "accuracy": _accuracy(frames["evals"]), "epsilon": _epsilon(folder),
        "checkpoints": checkpoint_rounds(folder), "disk_bytes": _disk_bytes(folder),
    }  # fmt: skip
    return status | {"advice": _advice(status)}


def checkpoint_rounds(folder: Path) -> list[int]:
    """Return the rounds after which the folder has a checkpoint, in order."""
    names = sorted(path.name for path in (folder / CHECKPOINT).glob("step-*"))
    return [int(name.removeprefix("step-")) for name in names]


def read_tables(folder: Path) -> Mapping[str, pl.DataFrame]:
    """Return the tables of a run, from the journal if there is one: it has every round at once."""
    tables = JournalReader(folder).tables()
    if tables is not None and (frames := tables.frames())["rounds"].height:
        return frames
    try:
        return {name: read_table(folder, name, _always(name)) for name in ("rounds", "evals", "clients")}
    except RunFolderError as error:
        if tables is not None:
            return tables.frames()  # before the first round
        raise RunFolderError(f"{folder} has no journal that can be read, and {error}; copy the whole folder") from error


def _always(table: str) -> list[str]:
    """Return the columns that a table of every version has."""
    kind = TABLES[table]
    return [name for name in schema_of(kind) if name not in nullable_in(kind)]


def _fields(event: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: event.get(name) for name in names}


def _number(event: Mapping[str, Any], name: str) -> float:
    """Return a number of an event; 0 if it is missing."""
    value = event.get(name)
    return value if isinstance(value, int | float) else 0


def _is_locked(folder: Path) -> bool | None:
    """Return whether a server writes to the folder; None if this user cannot find out."""
    try:
        FolderLock(folder).release()
    except RunFolderError as error:
        return True if "another process" in str(error) else None
    return False


def _age_s(events: list[dict[str, Any]], name: str) -> float | None:
    """Return the seconds since the last event of this name."""
    times = [event["time"] for event in events if event["event"] == name]
    return (datetime.now(UTC) - datetime.fromisoformat(times[-1])).total_seconds() if times else None


def _open_round(events: list[dict[str, Any]], done: int) -> dict[str, Any] | None:
    """Return the round that has started and not closed."""
    started = [event for event in events if event["event"] == "round" and _number(event, "round") > done]
    return _fields(started[-1], "time", "round", "deadline_s", "cohort") if started else None


def _clients(clients: pl.DataFrame, done: int) -> dict[str, Any]:
    """Return how many clients were selected, how many reported, and who has been silent for longest."""
    reported = clients.filter(clients["outcome"].is_in(REPORTED)).sort("round")
    last = dict(zip(reported["client"].to_list(), reported["round"].to_list(), strict=True))
    rows = clients.sort("round").group_by("client", maintain_order=True).last()
    missing = [
        {
            "client": row["client"],
            "last_report": last.get(row["client"], 0),
            "outcome": row["outcome"],
            "why": row["why"],
        }
        for row in rows.iter_rows(named=True)
        if row["outcome"] not in REPORTED
    ]
    missing.sort(key=lambda one: (one["last_report"], one["client"]))
    return {"selected": rows.height, "reported": len(last), "without_report": missing, "round": done}


def _suspended(events: list[dict[str, Any]], done: int) -> list[dict[str, Any]]:
    """Return the clients that skip the next round, with the last round that they skip."""
    until = {str(event.get("client")): event for event in events if event["event"] in ("sits out", "paused")}
    active = [until[client] for client in sorted(until) if _number(until[client], "until") > done]
    return [_fields(event, "client", "until", "why") for event in active]


def _accuracy(evals: pl.DataFrame) -> dict[str, Any] | None:
    known = evals.filter(evals["accuracy"].is_not_nan())
    if not known.height:
        return None
    best = known.row(int(known["accuracy"].arg_max() or 0), named=True)
    return {
        "last": known["accuracy"][-1], "round": known["round"][-1],
        "best": best["accuracy"], "best_round": best["round"],
    }  # fmt: skip


def _epsilon(folder: Path) -> dict[str, float] | None:
    """Return the largest privacy loss of a client; None for a method without noise."""
    import polars as pl

    if not (folder / PRIVACY).is_file():
        return None
    table = pl.read_parquet(folder / PRIVACY, glob=False)
    names = {"client": "epsilon", "model": "model_epsilon", "whole": "whole_epsilon"}
    largest = {key: table[name].max() for key, name in names.items() if name in table.columns}
    return {key: float(value) for key, value in largest.items() if isinstance(value, int | float)}


def _disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _advice(status: Mapping[str, Any]) -> list[str]:
    """Return what needs attention."""
    advice = []
    if status["status"] == "running" and status["server_is_running"] is False:
        advice.append("the server is gone; submit the app again with the same run_key, and the run continues")
    if status["status"] == "failed":
        advice.append(f"the run failed: {status['why']}; correct the cause, then submit the app again")
    advice += [*_overdue(status), *_advice_on_reports(status)]
    accuracy = status["accuracy"]
    if accuracy is not None and accuracy["last"] < accuracy["best"] - FALL:
        advice.append(
            f"the accuracy fell from {accuracy['best']:.3f} (round {accuracy['best_round']}) to {accuracy['last']:.3f}"
        )
    advice += [f"the tracker {each['sink']} is disabled: {each['why']}" for each in status["failed_trackers"][-1:]]
    return advice


def _overdue(status: Mapping[str, Any]) -> list[str]:
    last, age_s = status["last_round"], status["last_round_age_s"]
    if status["status"] != "running" or last is None or age_s is None:
        return []
    usual_s = last["deadline_s"] if math.isfinite(last["deadline_s"]) else last["end_s"] - last["start_s"]
    if age_s <= OVERDUE * usual_s:
        return []
    return [f"no round has closed for {age_s:.0f} s, more than {OVERDUE} deadlines; are the SuperNodes connected?"]


def _advice_on_reports(status: Mapping[str, Any]) -> list[str]:
    advice, outcomes = [], status["recent"]["outcomes"]
    total, count = sum(outcomes.values()), status["recent"]["rounds"]
    if invalid := outcomes.get("invalid", 0):
        clients = sorted({str(event["client"]) for event in status["invalid"][-invalid:]})
        if invalid > MANY_INVALID * total:
            advice.append(f"{invalid} of {total} replies of the last {count} rounds are invalid: {_names(clients)}")
    if total and not any(outcomes.get(name) for name in REPORTED):
        advice.append(f"no client reported in the last {count} rounds")
    silent = [each["client"] for each in status["clients"]["without_report"] if each["last_report"] == 0]
    if silent:
        advice.append(f"{len(silent)} selected clients have never reported: {_names(silent)}")
    return advice


def _names(clients: list[str]) -> str:
    more = f" and {len(clients) - SHOWN} more" if len(clients) > SHOWN else ""
    return ", ".join(clients[:SHOWN]) + more


def status_lines(status: Mapping[str, Any]) -> list[str]:
    """Return the status as text, one line per fact.

    Args:
        status: What `run_status` returned.
    """
    last, clients, accuracy = status["last_round"], status["clients"], status["accuracy"]
    alive = {True: ", server running", False: "", None: ", server unknown (the folder cannot be locked)"}
    lines = [
        f"run        {status['folder']}: {status['task']}, {status['method']}, seed {status['seed']}",
        f"status     {status['status']}{alive[status['server_is_running']]}"
        + (f": {status['why']}" if status["why"] else ""),
        f"rounds     {status['rounds_done']} of {status['rounds_planned']}, {status['empty_rounds']} without a report, "
        f"{status['restarts']} restarts",
    ]
    if last is not None:
        age = "" if status["last_round_age_s"] is None else f", closed {status['last_round_age_s']:.0f} s ago"
        lines.append(
            f"last       round {last['round']}: {last['completed']} of {last['selected']} clients in "
            f"{last['end_s'] - last['start_s']:.1f} s, deadline {last['deadline_s']:.1f} s, "
            f"threshold {last['loss_threshold']:.4g}{age}"
        )
    outcomes = ", ".join(f"{name} {count}" for name, count in sorted(status["recent"]["outcomes"].items()))
    lines.append(f"replies    last {status['recent']['rounds']} rounds: {outcomes or 'none'}")
    lines.append(f"clients    {clients['selected']} selected, {clients['reported']} reported at least once")
    lines += [
        f"           {each['client']}: {each['outcome']}, last report in round {each['last_report'] or 'none'}"
        + (f": {each['why']}" if each["why"] else "")
        for each in clients["without_report"][:SHOWN]
    ]
    lines += [
        f"suspended  {each['client']} until round {each['until']}: {each['why']}"
        for each in status["suspended"][:SHOWN]
    ]
    if accuracy is not None:
        lines.append(
            f"accuracy   {accuracy['last']:.4f} after round {accuracy['round']}, "
            f"best {accuracy['best']:.4f} after round {accuracy['best_round']}"
        )
    if status["epsilon"]:
        spent = ", ".join(f"{name} {value:.3g}" for name, value in status["epsilon"].items())
        lines.append(f"epsilon    largest of a client: {spent}")
    saved = ", ".join(map(str, status["checkpoints"])) or "none"
    lines.append(f"disk       {status['disk_bytes'] / 1e6:.1f} MB; checkpoints after rounds {saved}")
    lines.append(
        f"traffic    {status['down_bytes'] / 1e6:.1f} MB to clients, {status['up_bytes'] / 1e6:.1f} MB from them"
    )
    return lines + [f"attention  {each}" for each in status["advice"]]
