"""SIGKILL at any moment, then resume: the same bytes as a run that was left alone. Real processes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import commands
import pytest
from experiments.killing import (
    MARK,
    PATIENCE_S,
    POOL,
    RUN,
    SHARED,
    assert_nothing_left,
    command,
    contents,
    finish,
    kill_until_done,
    kill_workers,
    ownerless,
    processes_of,
    start,
    workers_of,
)

Whole = tuple[dict[str, bytes], float, float]
KILLS = int(os.environ.get("KILLS", "200"))
SHARDS = 8
"""So that two workers of pytest share the kills: five of runs in one process, two with a pool, one of its workers."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Whole]:
    """The undisturbed run: its bytes, the seconds until its folder appeared, and those until it ended."""

    @cache
    def made(*options: str) -> Whole:
        folder = tmp_path_factory.mktemp("whole") / "run"
        begun = time.monotonic()
        process = start(folder, *options)
        while not (folder / "checkpoint").is_dir():
            time.sleep(0.01)
            assert process.poll() is None
        first_s = time.monotonic() - begun
        assert process.wait(PATIENCE_S) == 0
        return contents(folder), first_s, time.monotonic() - begun

    return made


def test_a_killed_run_resumes_to_the_same_bytes(whole: Callable[..., Whole], tmp_path: Path) -> None:
    """Killed half way; the two hundred kills are at any moment."""
    expected, first_s, last_s = whole()
    moment_s = 0.5 * (first_s + last_s)
    kill_until_done(tmp_path / "run", random.Random(0), (moment_s, moment_s), 1)
    assert contents(tmp_path / "run") == expected


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_a_run_with_workers_of_which_one_is_killed_and_then_the_driver(
    whole: Callable[..., Whole], tmp_path: Path
) -> None:
    folder, before = tmp_path / "run", set(os.listdir(SHARED))
    process = start(folder, *POOL)
    while len(found := workers_of(folder)) < 2:
        time.sleep(0.01)
        assert process.poll() is None
    os.kill(found[0], signal.SIGKILL)
    while not any(folder.glob("checkpoint/step-*")):
        time.sleep(0.01)
        assert process.poll() is None
    assert len(processes_of(folder)) > 3
    process.kill()
    process.wait()
    assert_nothing_left(folder, before)
    finish(folder)
    assert contents(folder) == whole()[0]


def test_what_is_left_is_seen(tmp_path: Path) -> None:
    """The checks themselves: a process that outlives its run, and shared memory that nobody holds."""
    before = set(os.listdir(SHARED))
    orphan = subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: str(tmp_path)})
    left = SHARED / f"fedbalancer-test-{os.getpid()}"
    try:
        left.write_bytes(b"left")
        assert left.name in ownerless(before)
        assert processes_of(tmp_path) == [orphan.pid]
        assert processes_of(tmp_path / "other") == []
    finally:
        left.unlink()
        orphan.kill()
        orphan.wait()
    assert_nothing_left(tmp_path, before)


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
@pytest.mark.parametrize("shard", range(SHARDS))
def test_two_hundred_kills(shard: int, whole: Callable[..., Whole], tmp_path: Path) -> None:
    """Kills of the driver, of the process that resumes, and of workers: the same bytes, nothing left. Only
    kills that came before the end count."""
    options = POOL if shard > 4 else ()
    expected, (_, first_s, last_s) = whole()[0], whole(*options)
    rng, wanted, done, number = random.Random(shard), max(KILLS // SHARDS, 1), 0, 0
    pace = 1.0  # of the run that was left alone, by which moments are drawn; a machine may be faster now than then
    while done < wanted:
        folder, number = tmp_path / f"run-{number}", number + 1
        if shard == SHARDS - 1:
            between_s = (pace * 0.3 * first_s, pace * (last_s - first_s))
            hits = kill_workers(folder, rng, between_s, min(2, wanted - done))
        else:
            between_s = (pace * 0.8 * first_s, pace * 0.5 * (first_s + last_s))
            hits = kill_until_done(folder, rng, between_s, min(4, wanted - done), *options)
        done, pace = done + hits, pace if hits else 0.8 * pace
        assert contents(folder) == expected, f"shard {shard}, run {number}"
        shutil.rmtree(folder)


def test_ctrl_c_stops_cleanly_with_the_command_to_resume(whole: Callable[..., Whole], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = subprocess.Popen(command(*RUN, "--out", str(folder)), stderr=subprocess.PIPE, text=True)
    while not (folder / "checkpoint").is_dir() or not any((folder / "checkpoint").glob("step-*")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"fedbalancer resume {folder}" in errors
    finish(folder)
    assert contents(folder) == whole()[0]


def test_two_processes_cannot_write_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    endless = (*RUN, "--rounds", "100000")  # however long the second takes to start, the first is still at it
    first = subprocess.Popen(
        command(*endless, "--out", str(folder)), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        while not (folder / "checkpoint").is_dir():
            time.sleep(0.01)
        second = commands.run(tmp_path, "resume", "run")
        assert second.returncode == 2
        assert "Traceback" not in second.stderr
    finally:
        first.kill()
        first.wait()


COMPARE = (
    "compare", "synthetic", "--users", "12", "--rounds", "25", "--methods", "fedavg+1t,fedbalancer", "--seeds", "2",
    "--set", "clients_per_round=4", "--set", "w=3", "--jobs", "2",
)  # fmt: skip


def all_runs(folder: Path) -> dict[str, dict[str, bytes]]:
    return {
        str(path.parent.relative_to(folder)): contents(path.parent) for path in folder.glob("*/seed-*/manifest.json")
    }


def start_comparison(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        command(*COMPARE, "--out", str(folder)), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    while not any(folder.glob("*/seed-*/checkpoint/step-*")):
        time.sleep(0.01)
        assert process.poll() is None
    return process


def test_a_comparison_stopped_by_ctrl_c_or_killed_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    whole = commands.run(tmp_path, *COMPARE, "--out", "whole")
    assert whole.returncode == 0, whole.stderr
    expected = all_runs(tmp_path / "whole")
    assert len(expected) == 4

    stopped = start_comparison(tmp_path / "stopped")
    stopped.send_signal(signal.SIGINT)
    _, errors = stopped.communicate(timeout=120)
    assert stopped.returncode == 130
    assert f"fedbalancer resume {tmp_path / 'stopped'}" in errors

    killed = start_comparison(tmp_path / "killed")
    killed.kill()
    killed.communicate(timeout=20)  # returns when no process of it is left that holds the pipes

    for name in ("stopped", "killed"):
        done = commands.run(tmp_path, "resume", name)
        assert done.returncode == 0, done.stderr
        assert all_runs(tmp_path / name) == expected


def test_a_second_ctrl_c_exits_at_once(tmp_path: Path) -> None:
    process = start_comparison(tmp_path / "run")
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)  # returns when no process of it is left that holds the pipes
    assert process.returncode == 130
