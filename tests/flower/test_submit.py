"""Automatic resubmission, with a `flwr` that plays a script: which endings are followed by another submission."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fedbalancer.core.errors import MissingData
from fedbalancer.flower.submit import Submitter
from fedbalancer.store.contents import FORMAT

FLWR = """#!/bin/sh
cd "{folder}"
number=$(cat number 2> /dev/null || echo 0)
if [ "$1" = run ]; then
    ls "$FLWR_HOME" >> homes && touch "$FLWR_HOME/credentials.yaml" || exit 1
    number=$((number + 1))
    echo $number > number
    mkdir -p run/checkpoint
    cp $number.manifest run/manifest.json
    for round in $(cat $number.rounds); do mkdir -p run/checkpoint/step-0000000$round; done
    echo "{{\\"run-id\\": $number}}"
else
    echo "{{\\"runs\\": [{{\\"status\\": \\"$(cat $number.status)\\"}}]}}"
fi
"""


def play(folder: Path, *runs: tuple[str, str, int], tries: int = 5) -> tuple[str, list[str]]:
    """Supervise runs with a status of Flower, a status in the run folder, and a last round each."""
    (folder / "bin").mkdir()
    (folder / "home").mkdir()
    (folder / "home" / "config.toml").write_text("")
    (folder / "bin" / "flwr").write_text(FLWR.format(folder=folder))
    (folder / "bin" / "flwr").chmod(0o755)
    for number, (flower, status, last) in enumerate(runs, start=1):
        (folder / f"{number}.status").write_text(flower)
        (folder / f"{number}.manifest").write_text(json.dumps({"format": FORMAT, "status": status, "why": status}))
        (folder / f"{number}.rounds").write_text(str(last) if last else "")
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    lines: list[str] = []
    submitter = Submitter(
        folder / "app", folder / "run", tries=tries, poll_s=0.01, wait_s=0.01, say=lines.append,
        environment={"PATH": path},
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", path)
        patch.setenv("FLWR_HOME", str(folder / "home"))
        return submitter.keep_running(), [line for line in lines if line.startswith("submitted")]


def test_a_run_is_submitted_until_it_is_done(tmp_path: Path) -> None:
    runs = ("finished:failed", "running", 1), ("finished:failed", "failed", 2), ("finished:completed", "done", 3)
    assert play(tmp_path, *runs) == ("done", [f"submitted as run {number}" for number in (1, 2, 3)])


def test_a_superlink_that_dies_is_not_flwr_stop(tmp_path: Path) -> None:
    """Flower interrupts the ServerApp of a SuperLink that has died, so the run folder says stopped in both cases."""
    runs = ("finished:failed", "stopped", 1), ("finished:completed", "done", 2)
    status, submitted = play(tmp_path, *runs)
    assert (status, len(submitted)) == ("done", 2)


def test_flwr_stop_ends_the_supervision(tmp_path: Path) -> None:
    runs = ("finished:stopped", "stopped", 1), ("finished:completed", "done", 2)
    status, submitted = play(tmp_path, *runs)
    assert (status, len(submitted)) == ("stopped", 1)


def test_submissions_without_a_new_round_end_the_supervision(tmp_path: Path) -> None:
    runs = [("finished:failed", "failed", 0)] * 3
    with pytest.raises(MissingData, match=r"2 submissions in a row completed no round; .* finished:failed \(failed\)"):
        play(tmp_path, *runs, tries=2)


def test_a_read_only_configuration_is_copied_because_flwr_writes_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when it is mounted into a container."""
    runs = ("finished:failed", "running", 1), ("finished:completed", "done", 2)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert play(tmp_path, *runs)[0] == "done"
    assert (tmp_path / "homes").read_text().split() == ["config.toml", "config.toml", "credentials.yaml"]
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["config.toml"]
