"""A run goes on as soon as its earlier server has ended, which may take a while."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from fedbalancer.core.errors import RunFolderError
from fedbalancer.core.files import FolderLock
from fedbalancer.core.settings import Settings
from fedbalancer.flower import recorder
from fedbalancer.flower.recorder import RunRecorder, make_manifest
from fedbalancer.methods.table import method

MANIFEST = make_manifest("tiny", method("fedbalancer"), 0, Settings(), 3)


def test_the_earlier_server_is_waited_for(tmp_path: Path) -> None:
    RunRecorder(tmp_path / "run", MANIFEST).folder.close()
    earlier = FolderLock(tmp_path / "run")
    threading.Timer(0.7, earlier.release).start()
    again = RunRecorder(tmp_path / "run", MANIFEST)
    assert again.resumed
    again.folder.close()


def test_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "PREVIOUS_S", 0.3)
    earlier = RunRecorder(tmp_path / "run", MANIFEST)
    with pytest.raises(RunFolderError, match="another process"):
        RunRecorder(tmp_path / "run", MANIFEST)
    earlier.folder.close()


def test_a_damaged_folder_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunRecorder(tmp_path / "run", MANIFEST).folder.close()
    (tmp_path / "run" / "manifest.json").write_text("{")
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waited"))
    with pytest.raises(RunFolderError):
        RunRecorder(tmp_path / "run", MANIFEST)
