"""What is handed out: the package's own metadata, and (soak) a wheel and an sdist in a clean environment."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_every_python_that_is_promised_is_named() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if ":: 3." in line]
    assert named == ["3.11", "3.12", "3.13"]
    assert project["requires-python"] == f">={named[0]}"


def test_the_readme_says_how_to_install_without_a_checkout_and_without_a_gpu() -> None:
    text = (ROOT / "README.md").read_text()
    version = (ROOT / "src/fedbalancer/__init__.py").read_text().partition('__version__ = "')[2].partition('"')[0]
    assert "@ git+https://" in text
    assert f"fedbalancer-{version}-py3-none-any.whl" in text
    assert "compute platform CPU" in text


def call(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=3600,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_sdist_and_wheel_install_in_a_clean_environment_and_run(tmp_path: Path) -> None:
    """The wheel is built from the sdist, so that this has all that it needs."""
    call(sys.executable, "-m", "venv", "tools", cwd=tmp_path)
    call(tmp_path / "tools/bin/pip", "install", "-q", "build", cwd=tmp_path)
    call(tmp_path / "tools/bin/python", "-m", "build", "--outdir", tmp_path / "dist", ROOT, cwd=tmp_path)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    (sdist,) = (tmp_path / "dist").glob("*.tar.gz")
    assert sdist.stat().st_size < 20 * 2**20
    inside = zipfile.ZipFile(wheel).namelist()
    assert "fedbalancer/client/fast/conv.c" in inside
    assert "fedbalancer/py.typed" in inside
    call(sys.executable, "-m", "venv", "clean", cwd=tmp_path)
    call(tmp_path / "clean/bin/pip", "install", "-q", wheel, cwd=tmp_path)
    command = tmp_path / "clean/bin/fedbalancer"
    assert "ok      polars: " in call(command, "doctor", cwd=tmp_path)
    timed = ("synthetic", "-m", "fedavg+1t", "--rounds", "2", "--timing-only", "--out", "r")
    assert "done: synthetic" in call(command, "run", *timed, cwd=tmp_path)
    assert (tmp_path / "r" / "rounds.parquet").is_file()
