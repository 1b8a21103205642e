"""SIGKILL at any moment, then resume: the same bytes as a run that was left alone. Real processes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import commands
import pytest

FILES = ("rounds.parquet", "evals.parquet", "clients.parquet", "population.parquet", "model.safetensors")
RUN = (
    "run", "synthetic", "--users", "12", "--rounds", "40", "--method", "fedbalancer", "--set", "clients_per_round=4",
    "--set", "eval_every=2", "--set", "eval_every_s=17", "--set", "w=3", "--set", "checkpoint_s=0",
)  # fmt: skip


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fedbalancer", *arguments]


def finish(folder: Path) -> None:
    """Resume, or start if the kill came before the run had a manifest."""
    started = (folder / "manifest.json").is_file()
    arguments = ("resume", str(folder)) if started else (*RUN, "--out", str(folder))
    done = commands.run(folder.parent, *arguments)
    assert done.returncode == 0, done.stderr


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


def kill_and_finish(folder: Path, after_s: float) -> None:
    process = subprocess.Popen(
        command(*RUN, "--out", str(folder)), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    time.sleep(after_s)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finish(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], float, float]:
    """The undisturbed run: its bytes, the seconds until its folder appeared, and those until it ended."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    begun = time.monotonic()
    process = subprocess.Popen(
        command(*RUN, "--out", str(folder)), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    while not (folder / "checkpoint").is_dir():
        time.sleep(0.01)
        assert process.poll() is None
    first_s = time.monotonic() - begun
    assert process.wait(240) == 0
    return contents(folder), first_s, time.monotonic() - begun


@pytest.mark.parametrize("share", [0.05, 0.9])  # at any moment between: test_two_hundred_kills
def test_a_killed_run_resumes_to_the_same_bytes(
    share: float, whole: tuple[dict[str, bytes], float, float], tmp_path: Path
) -> None:
    expected, first_s, last_s = whole
    kill_and_finish(tmp_path / "run", first_s + share * (last_s - first_s))
    assert contents(tmp_path / "run") == expected


@pytest.mark.soak
def test_two_hundred_kills(whole: tuple[dict[str, bytes], float, float], tmp_path: Path) -> None:
    expected, first_s, last_s = whole
    moments = random.Random(0)
    for number in range(int(os.environ.get("KILLS", "200"))):
        folder = tmp_path / f"run-{number}"
        kill_and_finish(folder, moments.uniform(0.8 * first_s, last_s))
        assert contents(folder) == expected, f"kill {number}"


def test_ctrl_c_stops_cleanly_with_the_command_to_resume(
    whole: tuple[dict[str, bytes], float, float], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = subprocess.Popen(command(*RUN, "--out", str(folder)), stderr=subprocess.PIPE, text=True)
    while not (folder / "checkpoint").is_dir() or not any((folder / "checkpoint").glob("step-*")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"fedbalancer resume {folder}" in errors
    finish(folder)
    assert contents(folder) == whole[0]


def test_two_processes_cannot_write_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = subprocess.Popen(command(*RUN, "--out", str(folder)), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
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
