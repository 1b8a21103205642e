"""Runs as real processes that are killed, and what must be gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random

FILES = ("rounds.parquet", "evals.parquet", "clients.parquet", "population.parquet", "model.safetensors")
RUN = (
    "run", "synthetic", "--users", "12", "--rounds", "40", "--method", "fedbalancer", "--set", "clients_per_round=4",
    "--set", "eval_every=2", "--set", "eval_every_s=17", "--set", "w=3", "--set", "checkpoint_s=0",
)  # fmt: skip
POOL = ("--executor", "pool", "--workers", "2")
MARK = "FEDBALANCER_TEST_RUN"
"""In the environment of every process of a run, however it was started: their command lines say nothing."""
PATIENCE_S = 900.0
"""On a busy machine everything takes long; nothing here is about seconds."""
SHARED = Path("/dev/shm")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fedbalancer", *arguments]


def start(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    """Begin the run, or resume it if it has a manifest already."""
    begun = (folder / "manifest.json").is_file()
    arguments = ("resume", str(folder)) if begun else (*RUN, "--out", str(folder))
    return subprocess.Popen(
        command(*arguments, *options), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        env={**os.environ, MARK: str(folder)},
    )  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


def processes_of(folder: Path) -> list[int]:
    """All that a run has started, itself included. Of one that has ended there is no environment to read."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={folder}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def workers_of(folder: Path) -> list[int]:
    """The children of multiprocessing's fork server, which is a child of the run itself."""
    parents = {}
    for process in processes_of(folder):
        with suppress(OSError):
            parents[process] = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return [process for process, parent in parents.items() if parents.get(parent) in parents]


def ownerless(before: set[str]) -> set[str]:
    """New shared memory that no process holds: those of others that still run are not left behind."""
    new = set(os.listdir(SHARED)) - before if SHARED.is_dir() else set()
    held = ""
    for maps in Path("/proc").glob("[0-9]*/maps") if new else ():
        with suppress(OSError):
            held += maps.read_text()
    return {name for name in new if f"{SHARED / name}" not in held}


def assert_nothing_left(folder: Path, shared_before: set[str]) -> None:
    """No process of the run and nothing in shared memory, as soon as the others have seen that the driver is gone."""
    until = time.monotonic() + PATIENCE_S
    while (alive := processes_of(folder)) or (left := ownerless(shared_before)):
        assert time.monotonic() < until, f"processes {alive}" if alive else f"in {SHARED}: {left}"
        time.sleep(0.1)


def kill_until_done(folder: Path, rng: Random, between_s: tuple[float, float], most: int, *options: str) -> int:
    """Kill the run and the processes that resume it, let the last one end, and return the number of kills."""
    kills = 0
    while kills < most:
        before = set(os.listdir(SHARED)) if SHARED.is_dir() else set()
        process = start(folder, *options)
        with suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(*between_s))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert_nothing_left(folder, before)
        kills += 1
    finish(folder, *options)
    return kills


def finish(folder: Path, *options: str) -> None:
    assert start(folder, *options).wait(PATIENCE_S) == 0, (folder / "log.jsonl").read_text()[-2000:]


def kill_workers(folder: Path, rng: Random, between_s: tuple[float, float], most: int) -> int:
    """Kill some workers of a run, which continues with others, and return the number of kills."""
    before = set(os.listdir(SHARED)) if SHARED.is_dir() else set()
    process, kills = start(folder, *POOL), 0
    while kills < most and process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(*between_s))
        for worker in rng.sample(found, 1) if (found := workers_of(folder)) else ():
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
                kills += 1
    assert process.wait(PATIENCE_S) == 0
    assert_nothing_left(folder, before)
    return kills
