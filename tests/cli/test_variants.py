"""Methods with settings in brackets, on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.conftest import Cli

SMALL = ("--users", "12", "--rounds", "4", "--set", "eval_every=1", "--seeds", "1", "--extend", "1")
VARIANTS = ["fedavg+1t", "fedbalancer[w=5]", "fedbalancer[w=5,p=.75]"]


def test_compare_resume_and_report(cli: Cli, tmp_path: Path) -> None:
    methods = "fedavg+1t,fedbalancer[w=5],fedbalancer[p=0.75, w=5]"
    done = cli("compare", "synthetic", *SMALL, "--methods", methods, "--out", "c", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in VARIANTS)
    assert "fedbalancer[w=5,p=.75] seed 0: done" in done.stderr
    before = (tmp_path / "c" / "summary.json").read_bytes()
    manifest = tmp_path / "c" / VARIANTS[2] / "seed-0" / "manifest.json"
    stopped = {**json.loads(manifest.read_text()), "status": "stopped"}
    del stopped["sha256"]  # it is meant
    manifest.write_text(json.dumps(stopped))
    assert cli("resume", "c").returncode == 0
    assert json.loads(manifest.read_text())["status"] == "done"
    again = cli("report", "c")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "c" / "summary.json").read_bytes() == before
    assert list(json.loads(before)["methods"]) == VARIANTS


def test_a_run_by_a_file_of_settings(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "fedbalancer.toml").write_text('method = "fedbalancer[w=5, p=0.75]"\nw = 7\n')
    done = cli("run", "synthetic", "--users", "12", "--rounds", "2")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "synthetic-fedbalancer[w=5,p=.75]-seed-0"
    assert json.loads((folder / "manifest.json").read_text())["settings"]["w"] == 5


def test_a_policy_set_for_all_methods_is_in_the_name_of_each_with_its_parameters(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    asked = ("--methods", "fedavg+1t,fedbalancer,fedbalancer[deadline=mine:Mine(first=90)]")
    done = cli("compare", "synthetic", *SMALL, *asked, "--set", "deadline=mine:Mine(first=60)", "--out", "c")
    assert done.returncode == 0, done.stderr
    names = [f"{base}[deadline=mine:Mine(first=60)]" for base in ("fedavg+1t", "fedbalancer")]
    names.append("fedbalancer[deadline=mine:Mine(first=90)]")
    assert list(json.loads((tmp_path / "c" / "summary.json").read_text())["methods"]) == names
    assert not (tmp_path / "c" / "fedavg+1t").exists()


OWN = """
from dataclasses import dataclass
from fedbalancer.core.contracts import DeadlinePolicy

@dataclass(frozen=True)
class Mine(DeadlinePolicy):
    first: float = 30.0

    def plan(self, setup, state, cohort):
        return self.first, len(cohort)

class Incomplete:
    def plan(self, setup, state, cohort):
        return 60.0, len(cohort)
"""


def test_a_policy_of_no_base_is_told_which_base_to_derive_from(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    done = cli("run", "synthetic", "-m", "fedbalancer[deadline=mine:Incomplete]")
    assert done.returncode == 2
    assert done.stderr == (
        "error: deadline = 'mine:Incomplete' is not a policy for that slot: derive Incomplete from "
        "fedbalancer.core.contracts.DeadlinePolicy\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "synthetic", "-m", "fedbalancer[epoch=3]"), "did you mean epochs"),
        (("run", "synthetic", "-m", "fedavg"), "it has no deadline; add one, as in fedavg+1t, fedavg[deadline=.5T]"),
        (("run", "synthetic", "-m", "a,b"), "a run has one method"),
        (("run", "synthetic", "-m", "fedbalancer[w=5]/../x"), "no slash"),
        (("compare", "synthetic", "--methods", "fedbalancer[w=5"), "'[' that is not closed"),
        (("compare", "synthetic", "--methods", "fedbalancer[rounds=5]"), "how methods are measured"),
        (("compare", "synthetic", "--methods", "fedbalancer[w=5],fedbalancer[ w=5 ]"), "appears twice"),
    ],
)
def test_mistakes_are_one_line(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    done = cli(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_list_shows_the_brackets(cli: Cli) -> None:
    assert "...[key=value,...]" in cli("list", "methods").stdout


def test_methods_may_be_given_one_by_one(cli: Cli) -> None:
    tiny = ("synthetic", "--users", "4", "--rounds", "2", "--seeds", "1", "--json")
    done = cli("compare", *tiny, "--methods", "fedavg+1t", "-m", "fedavg[deadline=.5T],prox+1t", "--out", "c")
    assert list(json.loads(done.stdout)["methods"]) == ["fedavg+1t", "fedavg[deadline=.5T]", "prox+1t"]
    refused = cli("run", "synthetic", "-m", "fedavg+1t", "-m", "prox+1t")
    assert refused.returncode == 2
    assert "a run has one method" in refused.stderr
