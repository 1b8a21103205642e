"""`fedbalancer sweep` as a real process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.conftest import Cli

pytest.importorskip("optuna")
SMALL = ("--users", "8", "--rounds", "3", "--set", "eval_every=1", "--jobs", "1")


def test_the_best_is_printed_as_a_method_to_paste(cli: Cli, tmp_path: Path) -> None:
    done = cli("sweep", "synthetic", *SMALL, "--space", "w=2,5", "--space", "p=.75", "--objective", "accuracy")
    assert done.returncode == 0, done.stderr
    best = next(line for line in done.stdout.splitlines() if line.startswith("best: ")).removeprefix("best: ")
    assert best in ("fedbalancer[w=2,p=.75]", "fedbalancer[w=5,p=.75]")
    assert f"'fedavg+1t,fedbalancer,{best}'" in done.stdout
    assert (tmp_path / "runs" / "sweep-synthetic" / "figures" / "trials.png").is_file()
    again = cli(
        "sweep", "synthetic", *SMALL, "--space", "w=2,5", "--space", "p=.75", "--objective", "accuracy", "--json"
    )
    assert json.loads(again.stdout)["best"]["method"] == best


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((), "a sweep needs a space"), (("--space", "papr"), "did you mean paper"),
     (("--space", "w=5,20", "--objective", "acc"), "did you mean accuracy")],
)  # fmt: skip
def test_mistakes_are_one_line(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    done = cli("sweep", "synthetic", *SMALL, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
