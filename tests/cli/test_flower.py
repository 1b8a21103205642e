"""`fedbalancer flower` as a real process."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import save_file

from fedbalancer.flower.template import write_app

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("framework", ["torch", "numpy", "litert"])
def test_a_new_app_is_whole_and_its_own(cli: Cli, tmp_path: Path, framework: str) -> None:
    done = cli("flower", "new", "apps/My app-2", "--framework", framework)
    assert done.returncode == 0, done.stderr
    made = tmp_path / "apps" / "My app-2"
    files = {f"my_app_2/{name}.py" for name in ("__init__", "client_app", "server_app", "task")}
    more = {"DEVICE.md", "model.tflite"} if framework == "litert" else set()
    assert set(snapshot(made)) == files | {"pyproject.toml", "README.md"} | more
    assert len(done.stdout.splitlines()) == len(snapshot(made))
    config = tomllib.loads((made / "pyproject.toml").read_text())
    components = config["tool"]["flwr"]["app"]["components"]
    assert components == {"serverapp": "my_app_2.server_app:app", "clientapp": "my_app_2.client_app:app"}
    assert config["project"]["dependencies"] == []
    assert ("torch,flower" in (made / "README.md").read_text()) == (framework == "torch")
    assert not any(word in text for text in snapshot(made).values() for word in (b"@NAME@", b"@PROJECT@", b"@EXTRAS@"))
    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length", "120", "--select", "E,F,I,B", "."],
        cwd=made, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(
    ("folder", "package", "project"),
    [
        ("my_app", "my_app", "my-app"),
        ("My.First_App", "my_first_app", "my-first-app"),
        ("2nd try", "app_2nd_try", "app-2nd-try"),
        ("_x__y-", "x_y", "x-y"),
        ("grüße", "grusse", "grusse"),
        ("ünï", "uni", "uni"),
        ("My App", "my_app", "my-app"),
        ("a_very_long_name_for_an_app_that_is_small", None, "a-very-long-name-for-an-app-that"),
    ],
)
def test_flower_takes_an_app_of_any_name(tmp_path: Path, folder: str, package: str | None, project: str) -> None:
    pytest.importorskip("flwr", reason="flwr is not installed")
    from flwr.cli.build import build_fab_from_disk  # what `flwr run` does first
    from flwr.cli.config_utils import load_and_validate

    written = write_app(tmp_path / folder, "numpy")
    load_and_validate(tmp_path / folder / "pyproject.toml")
    assert build_fab_from_disk(tmp_path / folder)
    config = tomllib.loads((tmp_path / folder / "pyproject.toml").read_text())
    assert config["project"]["name"] == project
    assert {path.parent.name for path in written if path.suffix == ".py"} == {package or folder}


@pytest.mark.parametrize("app", ["new", "examples/flower", "examples/flower_numpy", "examples/flower_sklearn"])
def test_flower_can_install_what_an_app_says_that_it_needs(tmp_path: Path, app: str) -> None:
    """Installs an app as `flwr run .` does, but without a package index, because fedbalancer is not on one."""
    pytest.importorskip("uv", reason="uv is not installed")
    if app == "new":
        write_app(tmp_path / "app", "torch")
    else:
        shutil.copytree(Path(__file__).parents[2] / app, tmp_path / "app")
    environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(tmp_path / "env"), "UV_CACHE_DIR": str(tmp_path / "uv")}
    command = [sys.executable, "-m", "uv", "sync", "--offline", "--python", sys.executable, "--no-install-project"]
    done = subprocess.run(
        command, cwd=tmp_path / "app", env=environment, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.timeout(280)
@pytest.mark.parametrize("measures", [True, False], ids=["with batch_s", "without batch_s"])
def test_flwr_run_as_it_is_typed(cli: Cli, tmp_path: Path, measures: bool) -> None:
    """`flwr run .` works in Flower's simulation, with the SuperLink that it starts and without further flags. From the
    third round on reports count, whether the clients timed their batches before or not."""
    pytest.importorskip("flwr", reason="flwr is not installed")
    pytest.importorskip("ray", reason="flwr[simulation] is not installed")
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 39091)) == 0:
            pytest.skip("a local SuperLink of Flower is running already")
    assert cli("flower", "new", "my_app", "--framework", "numpy").returncode == 0
    if not measures:
        client = tmp_path / "my_app" / "my_app" / "client_app.py"
        client.write_text(client.read_text().replace(", batch_s=batch_s)", ")"))
    environment = {
        **os.environ, "FLWR_HOME": str(tmp_path / "home"), "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    try:
        done = subprocess.run(
            ["flwr", "run", ".", "--stream"],
            cwd=tmp_path / "my_app", env=environment, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
    finally:
        while found := processes_with(str(tmp_path / "home")):  # the port is needed again
            for process in found:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGTERM)
            time.sleep(0.5)
    run = tmp_path / "my_app" / "runs" / "first"
    assert (run / "manifest.json").exists(), done.stdout[-3000:] + done.stderr[-3000:]
    assert json.loads((run / "manifest.json").read_text())["status"] == "done"
    rounds = pl.read_parquet(run / "rounds.parquet").filter(pl.col("round") >= 3)
    assert rounds["completed"].sum() >= 0.95 * rounds["selected"].sum()


def processes_with(text: str) -> list[int]:
    """Processes that have a text in their command line: a SuperLink that nobody else can stop."""
    lines = {file.parent.name: file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists()}
    return [int(process) for process, line in lines.items() if text.encode() in line]


@pytest.mark.parametrize("folder", ["My App", "it's $HOME", "mine"])
def test_the_command_that_new_prints_can_be_pasted(cli: Cli, tmp_path: Path, folder: str) -> None:
    done = cli("flower", "new", folder, "--framework", "numpy")
    command = done.stderr.removeprefix("try it: ")
    assert shlex.split(command) == ["fedbalancer", "flower", "try", folder]


def test_an_empty_folder_is_filled_and_one_in_use_is_left_alone(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert cli("flower", "new", "mine").returncode == 0
    before = snapshot(tmp_path)
    done = cli("flower", "new", "mine", "--framework", "numpy")
    assert done.returncode == 2
    assert "mine exists" in done.stderr
    assert "Traceback" not in done.stderr
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["new", "numpy"], "'numpy' is not valid"),
        (["new", "class"], "'class' is not valid"),
        (["new", "..."], "'' is not valid"),
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


def test_forget_deletes_loss_lists_and_nothing_else(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr", reason="flwr is not installed")
    kept = tmp_path / "kept"
    kept.mkdir()
    key = "0123456789abcdef" * 2
    save_file({"losses": np.zeros(3)}, kept / f"{key}.safetensors", metadata={"key": key})
    save_file({"model": np.zeros(3)}, kept / "mine.safetensors")
    (kept / "damaged.safetensors").write_bytes(b"{")
    monkeypatch.setenv("FEDBALANCER_CLIENT_FOLDER", str(kept))
    done = cli("flower", "forget")
    assert (done.returncode, done.stderr) == (0, f"1 loss lists deleted in {kept}\n")
    assert set(snapshot(kept)) == {"mine.safetensors", "damaged.safetensors"}
    missing = cli("flower", "forget", "nowhere")
    assert missing.returncode == 2
    assert "nowhere is not a folder" in missing.stderr


@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    ("name", "framework"),
    [
        ("my_app", "litert"),
        pytest.param("gadget", "numpy", marks=[pytest.mark.soak, pytest.mark.alone]),
        pytest.param("2nd.App", "torch", marks=[pytest.mark.soak, pytest.mark.alone]),
    ],
)
def test_a_new_app_runs_as_it_is(cli: Cli, tmp_path: Path, name: str, framework: str) -> None:
    """And what its server writes to a relative path, as Flower's quickstarts do, is in the app's folder afterwards."""
    pytest.importorskip("flwr", reason="flwr is not installed")
    pytest.importorskip({"litert": "ai_edge_litert"}.get(framework, framework))
    assert cli("flower", "new", name, "--framework", framework).returncode == 0
    server = next((tmp_path / name).glob("*/server_app.py"))
    server.write_text(server.read_text() + '    open("final_model.pt", "w").write("the weights")\n')
    before = snapshot(tmp_path / name)
    done = cli("flower", "try", name, "--nodes", "2", "-c", "rounds=2 clients-per-round=2", timeout=270)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "run finished:completed" in done.stderr
    after = snapshot(tmp_path / name)
    left = {path for path in after if not path.startswith("runs/") and "__pycache__" not in path}
    assert left == {*before, "final_model.pt"}
    run = tmp_path / name / "runs" / "first"
    assert json.loads((run / "manifest.json").read_text())["status"] == "done"
    assert pl.read_parquet(run / "rounds.parquet")["completed"].sum() >= 1
    evals = pl.read_parquet(run / "evals.parquet")
    assert evals["loss"][-1] < evals["loss"][0]


@pytest.mark.soak
@pytest.mark.alone
def test_an_app_that_fails_is_exit_code_1_with_the_logs(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="flwr is not installed")
    assert cli("flower", "new", "mine", "--framework", "numpy").returncode == 0
    server = tmp_path / "mine" / "mine" / "server_app.py"
    server.write_text(server.read_text().replace("config = context.run_config", "raise RuntimeError('on purpose')"))
    done = cli("flower", "try", "mine", "--nodes", "1", timeout=240)
    assert done.returncode == 1
    assert "run finished:failed" in done.stderr
    assert "--- superlink" in done.stderr
