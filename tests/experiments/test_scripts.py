"""A user's own script, as a real process: without a main guard, from stdin, in IPython; with all that it defines."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import math
from dataclasses import dataclass

import numpy as np
import torch

import fedbalancer as fb
from fedbalancer.core.contracts import DeadlinePolicy


@dataclass(frozen=True)
class Seen:
    rounds: int = 0


@dataclass(frozen=True)
class Longer(DeadlinePolicy):
    first: float = 60.0

    def init(self, setup):
        return Seen()

    def observe(self, setup, state, result):
        return Seen(state.deadline.rounds + 1)

    def plan(self, setup, state, cohort):
        return self.first + state.deadline.rounds, len(cohort)


def net():
    return torch.nn.Linear(4, 2)


def samples(count, seed):
    x = np.random.default_rng(seed).normal(size=(count, 4)).astype("float32")
    return x, (x.sum(axis=1) > 0).astype("int64")


task = fb.Task(
    clients={f"c{k}": samples(20 + k, k) for k in range(4)}, test=samples(50, 9), model=net, clients_per_round=2,
    rounds=3,
)
mine = fb.method("fedbalancer", deadline=Longer(first=30.0), name="mine")
table = fb.compare(task, methods=["fedavg+1t", mine], seeds=1, jobs=2, extend=1.5)
assert not table.notes, table.notes
pooled = fb.run(task, method=mine, workers=2)
alone = fb.run(task, method=mine)
assert pooled.rounds.equals(alone.rounds) and pooled.evals.equals(alone.evals)
print("compared", ", ".join(each.method for each in table.methods))
"""


def start(*command: str, cwd: Path, given: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "TERM": "dumb"}
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, input=given, capture_output=True, text=True, timeout=280,
        check=False,
    )  # fmt: skip


def test_a_script_without_a_main_guard(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = start("script.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "compared fedavg+1t, mine\n"
    assert "Traceback" not in done.stderr


def test_from_stdin(tmp_path: Path) -> None:
    done = start("-", cwd=tmp_path, given=SCRIPT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "compared fedavg+1t, mine\n"
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("IPython") is None, reason="IPython is not installed")
def test_in_ipython(tmp_path: Path) -> None:
    (tmp_path / "cell.ipy").write_text(SCRIPT)
    done = start("-m", "IPython", "--colors=NoColor", "--no-banner", "cell.ipy", cwd=tmp_path)
    assert "compared fedavg+1t, mine" in done.stdout, done.stdout + done.stderr
