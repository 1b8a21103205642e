"""`fedbalancer testbed` and `fedbalancer paper` report mistakes before anything starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

Cli = Callable[..., "CompletedProcess[str]"]
FILE = Path(__file__).parent.parent / "training" / "small.tflite"
SMALL = ("testbed", "--task", "synthetic", "--scale", "small", "--clients", "3")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--method", "fedbalancr"), "did you mean fedbalancer"),
        (("--method", "fedavg+1t,fedavg+1t"), "distinct names"),
        (("--method", "fedavg+1t,fedavg+1t+late"), "method fedavg+1t+late accepts late reports"),
        (("--speed", "0"), "speed = 0.0 must be from"),
        (("--clients", "0"), "must be at least 1"),
        (("--phones", "nowhere.json"), "nowhere.json"),
        (("--set", "learningrate=1"), "did you mean learning_rate"),
        (("--runtime", "lite"), "unknown runtime 'lite'; did you mean litert?"),
        (("--model", "a.tflite"), "phones with torch use no model file; add --runtime litert"),
        (("--runtime", "executorch", "--model", "a.tflite"), "is not a file for executorch; such files end in .pte"),
        (("--runtime", "litert", "--model", "none.tflite"), "there is no model file"),
        (("--runtime", "litert", "--model", str(FILE)), "the model of synthetic at scale small: they differ in"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(cli: Cli, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = cli(*SMALL, *arguments)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_what_stands_in_the_folder_is_left_alone(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    done = cli(*SMALL, "--out", "mine", "--overwrite")
    assert done.returncode == 2
    assert "other files" in done.stderr
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"


def test_an_earlier_bed_is_not_replaced_unasked(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "bed.json").write_text(json.dumps({}))
    done = cli(*SMALL, "--out", "old")
    assert done.returncode == 2
    assert "--overwrite" in done.stderr


def test_help_names_the_table(cli: Cli) -> None:
    done = cli("paper", "table5", "--help")
    assert done.returncode == 0
    assert "Table 5" in done.stdout
