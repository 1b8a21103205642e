"""Disks that are full, broken, read-only or gone, at every write of a run: a sentence, and everything saved stays."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from experiments import tinytask
from typer.testing import CliRunner

import fedbalancer as fb
from fedbalancer.cli.app import app
from fedbalancer.core.errors import RunFolderError
from fedbalancer.store import read_manifest

FILES = ("rounds.parquet", "evals.parquet", "clients.parquet", "population.parquet", "model.safetensors")
KINDS = (errno.ENOSPC, errno.EIO, errno.EROFS)


class Disk:
    """Lets a number of writes succeed; later ones fail until it is repaired."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self.kind = 10**9, errno.ENOSPC
        for name in ("fsync", "replace", "rename"):
            monkeypatch.setattr(os, name, self._failing(getattr(os, name)))

    def _failing(self, real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise OSError(self.kind, os.strerror(self.kind))
            return real(*arguments, **options)

        return call


def contents(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in FILES]


def go(out: Path) -> Any:
    settings = {"checkpoint_s": 0.0}
    return fb.run(tinytask.load(), "fedavg+1t", rounds=3, out=out, settings=settings, backend="plain")


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.soak)])
def test_a_disk_that_fails_at_any_write_costs_a_sentence_and_nothing_else(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every fourth write here, with each kind of error; at every one in `make soak`."""
    disk = Disk(monkeypatch)
    go(tmp_path / "whole")
    writes = 10**9 - disk.left
    assert writes > 30
    for number in range(5, writes - 3, step):  # the first make the folder, the last come after the end
        out, disk.left, disk.kind = tmp_path / "run", number, KINDS[number % 3]
        with pytest.raises(RunFolderError, match=r"the run stopped: .*fedbalancer resume"):
            go(out)
        disk.left = 10**9
        assert read_manifest(out)["status"] in ("running", "done"), "on such a disk nobody could write another"
        fb.resume(out, task=tinytask.load())
        assert contents(out) == contents(tmp_path / "whole")
        shutil.rmtree(out)


def test_a_disk_with_a_little_room_left_gets_the_end_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fedbalancer.store.checkpoint.write_synced", full)
    monkeypatch.setattr("fedbalancer.store.folder.write_bytes", full)
    with pytest.raises(RunFolderError, match="No space left"):
        go(tmp_path / "run")
    assert read_manifest(tmp_path / "run")["status"] == "failed"
    assert "No space left" in read_manifest(tmp_path / "run")["why"]


def test_a_folder_that_was_removed_is_not_to_be_resumed(tmp_path: Path) -> None:
    def loss(scores: Any, labels: Any) -> Any:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        return tinytask.plain_loss(scores, labels)

    with pytest.raises(RunFolderError, match="is gone, so it has to start again"):
        fb.run(tinytask.load(loss=loss), "fedavg+1t", rounds=2, out=tmp_path / "run", backend="plain")


def test_a_report_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go(tmp_path / "run")
    disk = Disk(monkeypatch)
    disk.left, disk.kind = 0, errno.EROFS
    done = CliRunner().invoke(app, ["report", str(tmp_path / "run")])
    assert done.exit_code == 2
    assert "error: [Errno 30] Read-only file system" in done.output
    assert "Traceback" not in done.output
