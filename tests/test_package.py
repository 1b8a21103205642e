"""The release: the package's metadata, the files of wheel and sdist, and (soak) both in a clean environment."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "fedbalancer"
SHIPPED = (
    "py.typed", "training/fast/conv.c", "training/fast/vectors.h", "reporting/assets/page.html",
    "reporting/assets/charts.js", "reporting/assets/leaderboard.css", "paper/assets/item.html",
    "flower/template/app/pyproject.toml.txt", "flower/template/torch/client_app.py.txt",
    "flower/template/litert/model.tflite",
)  # fmt: skip
"""Of every kind of file that is no Python one by name: should a folder move, the test has to learn of it."""


def test_every_python_that_is_promised_is_named() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if ":: 3." in line]
    assert named == ["3.11", "3.12", "3.13"]
    assert project["requires-python"] == f">={named[0]}"


def test_the_pages_say_how_to_install_without_a_checkout_and_without_a_gpu() -> None:
    readme, text = (ROOT / "README.md").read_text(), (ROOT / "docs/quickstart.md").read_text()
    version = (ROOT / "src/fedbalancer/__init__.py").read_text().partition('__version__ = "')[2].partition('"')[0]
    assert "docs/quickstart.md" in readme
    assert "@ git+URL" in text
    assert f"fedbalancer-{version}-py3-none-any.whl" in text
    assert "CPU build of torch" in readme
    assert "CPU command" in text


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel and an sdist of this checkout, built without an environment of their own: nothing is fetched."""
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "hatchling", "build", "--directory", folder, cwd=ROOT)
    return folder


def files_of(folder: Path) -> set[str]:
    """All that git would keep of a folder."""
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert inside == {f"fedbalancer/{name}" for name in files_of(PACKAGE)}
    assert {f"fedbalancer/{name}" for name in SHIPPED} <= inside


def test_the_wheel_says_what_it_needs_and_which_command_it_brings(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        (folder,) = {name.partition("/")[0] for name in opened.namelist() if ".dist-info/" in name}
        metadata = opened.read(f"{folder}/METADATA").decode()
        assert "fedbalancer = fedbalancer.cli:main" in opened.read(f"{folder}/entry_points.txt").decode()
        assert f"{folder}/licenses/LICENSE" in opened.namelist()
    assert "Requires-Python: >=3.11" in metadata
    always = [line for line in metadata.splitlines() if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert always
    assert not [line for line in always if any(name in line for name in ("torch", "flwr", "ray>"))]


def test_the_sdist_is_enough_to_build_and_to_test(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as opened:
        inside = {name.partition("/")[2] for name in opened.getnames()}
    assert {f"src/fedbalancer/{name}" for name in files_of(PACKAGE)} <= inside
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "tests/conftest.py"} <= inside
    assert not [name for name in inside if name.startswith((".venv", "runs/", "site/"))]
    assert sdist.stat().st_size < 20 * 2**20


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
    call(sys.executable, "-m", "venv", "clean", cwd=tmp_path)
    call(tmp_path / "clean/bin/pip", "install", "-q", wheel, cwd=tmp_path)
    command = tmp_path / "clean/bin/fedbalancer"
    assert "ok      polars: " in call(command, "doctor", cwd=tmp_path)
    timed = ("synthetic", "-m", "fedavg+1t", "--rounds", "2", "--timing-only", "--out", "r")
    assert "done: synthetic" in call(command, "run", *timed, cwd=tmp_path)
    assert (tmp_path / "r" / "rounds.parquet").is_file()
