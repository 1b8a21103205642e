"""A run folder in which any byte was flipped, or any file cut off: noticed, or of no effect; never another result."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments import tinytask

import fedbalancer as fb
from fedbalancer.core.errors import RunFolderError

FILES = ("rounds.parquet", "evals.parquet", "clients.parquet", "population.parquet", "model.safetensors")
UNCHECKED = ("log.jsonl", ".lock")
"""What no result depends on."""


def go_on(out: Path) -> Any:
    return fb.resume(out, task=tinytask.load())


def contents(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in FILES]


def make(tmp_path: Path) -> tuple[Path, list[bytes]]:
    """A run that was stopped after a few rounds with two checkpoints, and the files of one that was left alone."""
    settings, rounds = {"checkpoint_s": 0.0}, 6
    given: dict[str, Any] = {"settings": settings, "rounds": rounds, "backend": "plain"}
    fb.run(tinytask.load(), "fedbalancer", out=tmp_path / "whole", **given)
    calls = 0

    class Stop(Exception):
        pass

    def loss(scores: Any, labels: Any) -> Any:
        nonlocal calls
        calls += 1
        if len(list((tmp_path / "stopped" / "checkpoint").glob("step-*"))) == 2:
            raise Stop
        return tinytask.plain_loss(scores, labels)

    with pytest.raises(Stop):
        fb.run(tinytask.load(loss=loss), "fedbalancer", out=tmp_path / "stopped", **given)
    go_on(Path(shutil.copytree(tmp_path / "stopped", tmp_path / "again")))
    assert contents(tmp_path / "again") == contents(tmp_path / "whole")
    return tmp_path / "stopped", contents(tmp_path / "whole")


def damaged(stopped: Path, copy: Path, rng: np.random.Generator) -> str:
    """A copy of the folder with one bit flipped or one file cut off; which file it is. Bytes are drawn over all files,
    so that each is hit as often as it is long, and every file once in a while."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(stopped, copy)
    files = [path for path in sorted(copy.rglob("*")) if path.is_file() and path.stat().st_size]
    files = [path for path in files if path.name not in UNCHECKED]
    sizes = np.array([path.stat().st_size for path in files])
    shares = sizes / sizes.sum() if rng.random() < 0.5 else np.full(len(files), 1 / len(files))
    file = files[rng.choice(len(files), p=shares)]
    data = bytearray(file.read_bytes())
    place = int(rng.integers(len(data)))
    if rng.random() < 0.8:
        data[place] ^= 1 << int(rng.integers(8))
    else:
        del data[place:]
    file.write_bytes(data)
    return str(file.relative_to(copy))


def outcome(copy: Path, whole: list[bytes]) -> str:
    """Return what happened when a damaged folder was resumed."""
    try:
        go_on(copy)
    except RunFolderError:
        return "refused"
    if contents(copy) != whole:
        return "LOST"
    return "went back" if "checkpoint damaged" in (copy / "log.jsonl").read_text() else "no effect"


@pytest.mark.parametrize("times", [60, pytest.param(1000, marks=pytest.mark.soak)])
def test_no_damage_changes_a_result(tmp_path: Path, times: int) -> None:
    stopped, whole = make(tmp_path)
    rng = np.random.default_rng(times)
    found: dict[str, list[str]] = {}
    for _ in range(times):
        file = damaged(stopped, tmp_path / "copy", rng)
        found.setdefault(outcome(tmp_path / "copy", whole), []).append(file)
    assert "LOST" not in found, found["LOST"]
    assert set(found) >= {"refused", "went back"}
    no_effect = {Path(name).name for name in found.get("no effect", [])}
    assert not any(name.startswith("manifest") for name in no_effect), "of it every byte counts"
    print({kind: len(files) for kind, files in found.items()}, no_effect)
