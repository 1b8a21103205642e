"""A folder from a stranger: nothing that it names is imported without permission."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest

from fedbalancer.core.errors import RunFolderError, UntrustedCode
from fedbalancer.experiments.comparison import compare
from fedbalancer.experiments.execute import resume, run
from fedbalancer.experiments.plan import ComparisonPlan
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.experiments.trust import EVERYTHING, code_of
from fedbalancer.store import COMPARISON

TOML = """
[data]
kind = "npz"
path = "d.npz"
user = "who"
[model]
name = "strange_nets:make"
[settings]
rounds = 2
clients_per_round = 2
"""
NETS = """
import pathlib, torch
pathlib.Path(__file__).with_name("ran").touch()
def make(shape, classes):
    return torch.nn.Linear(shape[0], classes)
"""


@pytest.fixture
def strange(tmp_path: Path, folders: tuple[Path, Path]) -> Path:
    """A folder with a task file and code beside it, which leaves a file when it is imported."""
    home = tmp_path / "strange"
    home.mkdir()
    y = np.arange(60) % 2
    np.savez(home / "d.npz", x=y[:, None] + np.eye(60, 3), y=y, who=np.array([f"u{n % 6}" for n in range(60)]))
    (home / "t.toml").write_text(TOML)
    (home / "strange_nets.py").write_text(NETS)
    return home


def edited(file: Path, change: Callable[[Any], None]) -> None:
    """Change the JSON in a file, as who made it would have."""
    content = json.loads(file.read_text())
    change(content)
    content.pop("sha256", None)
    file.write_text(json.dumps(content))


def cli(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return commands.run(folder, *arguments)


def run_naming(strange: Path, tmp_path: Path) -> Path:
    """A harmless run whose manifest was made to name the stranger's task."""
    out = tmp_path / "r"
    run("synthetic", "fedavg+1t", rounds=1, users=4, out=out)

    def name(manifest: Any) -> None:
        manifest["spec"]["task"] = str(strange / "t.toml")
        manifest["status"] = "stopped"

    edited(out / "manifest.json", name)
    return out


def test_a_strangers_run_is_not_resumed_unless_trusted(strange: Path, tmp_path: Path) -> None:
    out = run_naming(strange, tmp_path)
    refused = cli(tmp_path, "resume", str(out))
    assert refused.returncode == 2
    assert "strange_nets:make" in refused.stderr
    assert str(strange / "strange_nets.py") in refused.stderr
    assert "--trust" in refused.stderr
    assert "Traceback" not in refused.stderr
    with pytest.raises(UntrustedCode, match="strange_nets"):
        resume(out)
    assert not (strange / "ran").exists()
    cli(tmp_path, "resume", str(out), "--trust")
    assert (strange / "ran").exists()


@pytest.mark.skipif(os.name != "posix", reason="terminals are POSIX's")
@pytest.mark.parametrize(("answer", "runs"), [(b"n\n", False), (b"y\n", True)])
def test_at_a_terminal_the_code_is_shown_and_asked_for(
    strange: Path, tmp_path: Path, answer: bytes, runs: bool
) -> None:
    out = run_naming(strange, tmp_path)
    ours, theirs = os.openpty()
    os.write(ours, answer)
    command = [sys.executable, "-m", "fedbalancer", "resume", str(out)]
    ended = subprocess.run(command, stdin=theirs, capture_output=True, text=True, timeout=240, check=False)
    os.close(ours)
    os.close(theirs)
    assert "strange_nets:make" in ended.stderr
    assert "Run it? [y/N]" in ended.stderr
    assert (strange / "ran").exists() == runs


def test_a_report_of_a_strangers_folder_imports_nothing(strange: Path, tmp_path: Path) -> None:
    out = run_naming(strange, tmp_path)
    assert cli(tmp_path, "report", str(out)).returncode == 0
    assert not (strange / "ran").exists()


def test_what_one_started_oneself_is_resumed_without_a_question(strange: Path, tmp_path: Path) -> None:
    out = tmp_path / "own"
    done = cli(tmp_path, "run", str(strange / "t.toml"), "-m", "fedavg+1t", "--out", str(out))
    assert done.returncode == 0, done.stderr
    resumed = cli(tmp_path, "resume", str(out))
    assert resumed.returncode == 0, resumed.stderr


@pytest.mark.parametrize("place", ["methods", "spec"])
def test_a_strangers_comparison_is_not_read_unless_trusted(strange: Path, tmp_path: Path, place: str) -> None:
    out = tmp_path / "c"
    compare("synthetic", ["fedavg+1t"], 1, extend=1, rounds=1, users=4, out=out, jobs=1, workers=1)

    def name(content: Any) -> None:
        if place == "methods":
            content["methods"].append("fedavg[deadline=strange_nets:make]")
        else:
            content["spec"]["settings"] = {"deadline": "strange_nets:make"}

    edited(out / COMPARISON, name)
    with pytest.raises(UntrustedCode, match="slot deadline"):
        ComparisonPlan.read(out)
    refused = cli(strange, "resume", str(out))
    assert refused.returncode == 2
    assert "strange_nets" in refused.stderr


def test_a_run_inside_a_comparison_may_not_name_other_code_than_the_comparison(strange: Path, tmp_path: Path) -> None:
    out = tmp_path / "c"
    compare("synthetic", ["fedavg+1t"], 1, extend=1, rounds=1, users=4, out=out, jobs=1, workers=1)

    def name(manifest: Any) -> None:
        manifest["spec"]["task"] = str(strange / "t.toml")
        manifest["status"] = "stopped"

    edited(out / "fedavg+1t" / "seed-0" / "manifest.json", name)
    refused = cli(tmp_path, "resume", str(out))
    assert refused.returncode == 2
    assert "strange_nets" in refused.stderr
    assert not (strange / "ran").exists()


def test_nothing_is_taken_from_the_working_folder(strange: Path, tmp_path: Path) -> None:
    out = run_naming(strange, tmp_path)
    edited(out / "manifest.json", lambda manifest: manifest["spec"].update(task="strange_nets:make"))
    ended = cli(strange, "resume", str(out), "--trust")
    assert ended.returncode == 2
    assert "there is no module 'strange_nets'" in ended.stderr
    edited(out / "manifest.json", lambda manifest: manifest["spec"].update(task="t.toml"))
    ended = cli(strange, "resume", str(out), "--trust")
    assert ended.returncode == 2
    assert "'t.toml' has no absolute path" in ended.stderr
    assert not (strange / "ran").exists()


@pytest.mark.parametrize("wrong", [{"seed": "x"}, {"method": 3}, {"rounds": [1]}, {"settings": 4}, {"users": "many"}])
def test_options_of_the_wrong_kind_are_one_sentence(wrong: dict[str, Any]) -> None:
    written = RunSpec(task="synthetic").to_json()
    with pytest.raises(RunFolderError, match="invalid options"):
        code_of(RunSpec.from_json({**written, **wrong}))


def test_what_is_ours_needs_no_trust() -> None:
    spec = RunSpec(task="har", method="fedavg[deadline=.5T,aggregate=TrimmedMean(beta=.1)]", settings={"w": 5})
    assert code_of(spec, ["fedbalancer", "oort"]) == ()
    assert EVERYTHING is None
