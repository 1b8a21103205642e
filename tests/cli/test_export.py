"""`fedbalancer export` reports mistakes in one line, before any work."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedbalancer.cli.app import app


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["watch", "--runtime", "lightrt"], "unknown runtime 'lightrt'; did you mean litert?"),
        (["wach"], "unknown task 'wach'; did you mean watch?"),
        (["watch", "--shape", "1,2"], "--shape is only for a custom model"),
        (["small_nets:make", "--shape", "2,x"], "--shape '2,x' must be integers"),
        (["small_nets:make", "--shape", "2,0"], "must be positive integers"),
        (["small_nets:make", "--shape", "3,12"], "the model fails on 16 samples of shape (3, 12)"),
        (["small_nets:SHAPE", "--shape", "2,12"], "must be a function that returns a torch model, not tuple"),
        (["small_nets:task", "--runtime", "executorch", "-o", "a.tflite"], "a file for executorch ends in .pte"),
        (["small_nets:task", "-o", "a.pte"], "a file for litert ends in .tflite"),
        (["small_nets:task", "-o", "/no/such/folder/a.tflite"], "there is no folder /no/such/folder"),
    ],
)
def test_bad_input_is_one_line(options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["export", *options])
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())
    assert not list(tmp_path.iterdir())


def test_without_executorch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setitem(sys.modules, "executorch.runtime", None)
    told = ["export", "small_nets:task", "--runtime", "executorch", "-o", str(tmp_path / "a.pte")]
    done = CliRunner().invoke(app, told)
    assert done.exit_code == 2
    assert "pip install 'fedbalancer[executorch]'" in done.stderr


def test_without_tensorflow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    done = CliRunner().invoke(app, ["export", "small_nets:task", "-o", str(tmp_path / "a.tflite")])
    assert done.exit_code == 2
    assert "pip install 'fedbalancer[export]'" in done.stderr
