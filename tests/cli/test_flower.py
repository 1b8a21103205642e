"""`fedbalancer flower` as a real process."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_a_new_app_is_whole_and_its_own(cli: Cli, tmp_path: Path, framework: str) -> None:
    done = cli("flower", "new", "apps/My app-2", "--framework", framework)
    assert done.returncode == 0, done.stderr
    made = tmp_path / "apps" / "My app-2"
    files = {f"my_app_2/{name}.py" for name in ("__init__", "client_app", "server_app", "task")}
    assert set(snapshot(made)) == files | {"pyproject.toml", "README.md"}
    assert len(done.stdout.splitlines()) == len(snapshot(made))
    config = tomllib.loads((made / "pyproject.toml").read_text())
    components = config["tool"]["flwr"]["app"]["components"]
    assert components == {"serverapp": "my_app_2.server_app:app", "clientapp": "my_app_2.client_app:app"}
    assert ("torch" in config["project"]["dependencies"][0]) == (framework == "torch")
    assert not any(b"@" + name + b"@" in text for text in snapshot(made).values() for name in (b"NAME", b"EXTRAS"))
    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length", "120", "--select", "E,F,I,B", "."],
        cwd=made, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout


def test_an_empty_folder_is_filled_and_one_in_use_is_left_alone(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert cli("flower", "new", "mine").returncode == 0
    before = snapshot(tmp_path)
    done = cli("flower", "new", "mine", "--framework", "numpy")
    assert done.returncode == 2
    assert "mine is there already" in done.stderr
    assert "Traceback" not in done.stderr
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["new", "numpy"], "'numpy' cannot be one"),
        (["new", "3rd"], "'3rd' cannot be one"),
        (["new", "mine", "--framework", "torhc"], "did you mean torch?"),
        (["new", "file/in/the/way"], "cannot be written"),
        (["try", "."], "no pyproject.toml"),
        (["try", "plain"], "no [tool.flwr.app]"),
    ],
)
def test_mistakes_are_told_in_a_line(cli: Cli, tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "pyproject.toml").write_text('[project]\nname = "plain"\n')
    before = snapshot(tmp_path)
    done = cli("flower", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert snapshot(tmp_path) == before


@pytest.mark.timeout(280)
@pytest.mark.parametrize("framework", ["numpy", pytest.param("torch", marks=pytest.mark.soak)])
def test_a_new_app_runs_as_it_is(cli: Cli, tmp_path: Path, framework: str) -> None:
    pytest.importorskip("flwr", reason="flwr is not installed")
    pytest.importorskip(framework)
    assert cli("flower", "new", "mine", "--framework", framework).returncode == 0
    done = cli("flower", "try", "mine", "--nodes", "2", "-c", "rounds=2 clients-per-round=2", timeout=270)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "run finished:completed" in done.stderr
    run = tmp_path / "mine" / "runs" / "first"
    assert json.loads((run / "manifest.json").read_text())["status"] == "done"
    assert pl.read_parquet(run / "rounds.parquet")["completed"].sum() >= 1
    evals = pl.read_parquet(run / "evals.parquet")
    assert evals["loss"][-1] < evals["loss"][0]


@pytest.mark.soak
def test_an_app_that_fails_is_exit_code_1_with_the_logs(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="flwr is not installed")
    assert cli("flower", "new", "mine", "--framework", "numpy").returncode == 0
    server = tmp_path / "mine" / "mine" / "server_app.py"
    server.write_text(server.read_text().replace("config = context.run_config", "raise RuntimeError('on purpose')"))
    done = cli("flower", "try", "mine", "--nodes", "1", timeout=240)
    assert done.returncode == 1
    assert "run finished:failed" in done.stderr
    assert "--- superlink" in done.stderr
