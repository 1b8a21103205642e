"""A tiny deterministic run, to be killed: `python tiny_run.py FOLDER ROUNDS` starts or resumes it.

`python tiny_run.py FOLDER ROUNDS every` runs it once for every operation on files that it makes, killed right before
that operation, and resumes it each time; it prints a JSON object with what it saw.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedbalancer.core.errors import RunFolderError
from fedbalancer.core.types import Layout, Ledger, ServerState
from fedbalancer.store import ClientRow, EvalRow, RoundRow, RunFolder

LAYOUT = Layout((("layer.weight", (2, 2)), ("layer.bias", (2,))))
RESULTS = ("rounds.parquet", "evals.parquet", "clients.parquet", "model.safetensors")
FILE_EVENTS = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "shutil.rmtree"}


@dataclass(frozen=True)
class Pace:
    best: float
    history: tuple[float, ...]
    label: str | None


def start() -> ServerState:
    clients = ("ann", "bob", "cid")
    ledger = Ledger.start(clients, np.array([3, 4, 5]), np.array([0.1, 0.2, 0.3]), np.full((3, 10), 0.01))
    return ServerState(0, 0.0, np.linspace(-1, 1, 6, dtype=np.float32), ledger, pace=Pace(math.inf, (), None))


def play(state: ServerState, memory: dict[str, Any]) -> tuple[ServerState, dict[str, Any]]:
    """One round: every number depends on all that came before, so that nothing lost goes unnoticed."""
    number = state.round + 1
    weights = (state.weights * np.float32(1.01) + np.float32(1 / number)).astype(np.float32)
    clock_s = state.clock_s * 1.1 + float(weights.sum())
    pace = Pace(min(state.pace.best, clock_s), (*state.pace.history[-3:], clock_s, math.nan), f"round {number}")
    ledger = replace(state.ledger, participations=state.ledger.participations + 1)
    memory = {name: losses * 0.9 + number for name, losses in memory.items()}
    return replace(state, round=number, clock_s=clock_s, weights=weights, pace=pace, ledger=ledger), memory


def rows(state: ServerState, memory: dict[str, Any]) -> tuple[Any, Any, Any]:
    negative_nan = np.float64(np.inf) - np.float64(np.inf)  # its sign bit is set on many machines
    one: dict[str, Any] = {
        "round": state.round, "start_s": state.clock_s / 2, "end_s": state.clock_s, "deadline_s": math.inf,
        "loss_threshold": np.float32(0.1), "loss_threshold_ratio": negative_nan, "deadline_ratio": -0.0,
        "selected": 3, "completed": np.int64(2), "samples": 7, "epochs": 5, "utility": None if state.round % 2 else 0.1,
        "down_bytes": 3 * state.round, "up_bytes": np.int64(2 * state.round),
    }  # fmt: skip
    clients: list[dict[str, Any]] = [
        {
            "round": state.round, "client": name, "download_s": float(losses[0]), "forward_s": 0.1, "train_s": 0.2,
            "upload_s": 0.3, "paused_s": 0.0, "epochs": 2.5, "samples": int(state.ledger.participations[0]),
            "outcome": "done",
        }
        for name, losses in memory.items()
    ]  # fmt: skip
    one |= {"device_s": state.clock_s / 3, "sample_passes": np.float64(35)}
    by_round = EvalRow(state.round, 0.0, state.clock_s, 0.5, math.nan)
    by_clock = [by_round._replace(clock_s=state.clock_s / part, schedule="seconds") for part in (4, 2)]
    found = [[], by_clock, [*by_clock, by_round]][state.round % 3]
    return RoundRow(**one), found, [ClientRow(**client) for client in clients]


def drive(path: Path, rounds: int) -> None:
    """Start the run, or go on with it, to the end."""
    state, memory = start(), {"ann": np.zeros(2), "bob": np.ones(1), "cid": np.full(3, 0.1)}
    try:
        folder = RunFolder.create(path, {"seed": 0})
    except RunFolderError:
        folder = RunFolder.open(path)
        restored = folder.restore(state)
        if restored is not None:
            state, counts, memory = restored
            assert counts == {"rounds": state.round}, counts
    with np.errstate(invalid="ignore"), folder:
        while state.round < rounds:
            state, memory = play(state, memory)
            folder.record(*rows(state, memory))
            for _ in range(2 if state.round == 1 else 1):  # the first twice: to replace the only one must be safe too
                folder.checkpoint(state, {"rounds": state.round}, memory)
        folder.finish("done", None, state.weights, LAYOUT)


def results(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in RESULTS}


def in_child(path: Path, rounds: int, kill_at: int | None) -> int:
    """Drive the run in a forked process, killed right before its `kill_at`-th operation; its wait status."""
    import polars  # noqa: F401 - once for all children; unused here, so it has no threads that a fork would lose

    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    left = -1 if kill_at is None else kill_at

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        # what removes a directory names the files in it by their bare names
        if event in FILE_EVENTS and (str(path) in str(arguments[0]) or event in ("os.remove", "os.rmdir")):
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    sys.addaudithook(watch)
    try:
        drive(path, rounds)
    except BaseException as error:
        print(f"killed before operation {kill_at}: {error!r}", file=sys.stderr)
        os._exit(1)
    os._exit(0)


def kill_everywhere(base: Path, rounds: int) -> dict[str, Any]:
    assert in_child(base / "calm", rounds, None) == 0
    calm, wrong, kills = results(base / "calm"), [], 0
    while True:
        path = base / f"killed-{kills}"
        if in_child(path, rounds, kills) == 0:
            return {"kills": kills, "wrong": wrong}
        ended = in_child(path, rounds, None)
        leftovers = [str(file) for file in path.rglob("*") if "tmp" in file.name]
        if ended != 0 or results(path) != calm or leftovers:
            wrong.append({"before operation": kills, "resume ended": ended, "left": leftovers})
        kills += 1


if __name__ == "__main__":
    if sys.argv[3:] == ["every"]:
        print(json.dumps(kill_everywhere(Path(sys.argv[1]), int(sys.argv[2]))))
    else:
        print("ready", flush=True)
        drive(Path(sys.argv[1]), int(sys.argv[2]))
