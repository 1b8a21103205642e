"""`fedbalancer leaderboard` as a real process."""

from __future__ import annotations

import json
from pathlib import Path

from cli.conftest import Cli
from reporting.conftest import write_comparison
from reporting.results_folder import write_results


def test_the_default_folder_is_shown_and_ones_own_added_with_one_command(cli: Cli, tmp_path: Path) -> None:
    write_results(tmp_path / "docs" / "results")
    shown = cli("leaderboard")
    assert shown.returncode == 0, shown.stderr
    assert "14 entries" in shown.stdout
    write_comparison(tmp_path / "mine", methods=("fedavg+1t", "fedbalancer"), seeds=(0, 1))
    added = cli("leaderboard", "add", "mine", "--name", "Ann", "--json")
    assert added.returncode == 0, added.stderr
    assert {entry["method"] for entry in json.loads(added.stdout) if entry["owner"] == "Ann"} == {
        "fedavg+1t", "fedbalancer",
    }  # fmt: skip
    page = (tmp_path / "docs" / "results" / "leaderboard.html").read_text()
    assert '<span class="tag">Ann</span>' in page


def test_mistakes_are_one_line(cli: Cli) -> None:
    for arguments, message in [
        (("nowhere",), "there is no folder nowhere"), (("add",), "add FOLDER"), (("a", "b"), "pass a folder"),
        (("add", "nowhere"), "neither comparison.json"),
    ]:  # fmt: skip
        done = cli("leaderboard", *arguments)
        assert done.returncode == 2
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1
