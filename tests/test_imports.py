"""Packages import downwards only: every import statement in the sources is read, late and type-only ones included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedbalancer

ROOT = Path(fedbalancer.__file__).parent

LAYERS = (
    ("core",),
    ("client", "privacy", "server"),
    ("methods",),
    ("training",),
    ("simulation", "store"),
    ("data",),
    ("export", "flower", "reporting"),
    ("experiments",),
    ("paper",),
    ("testing",),
    ("cli",),
)
"""The order of the packages and top-level modules: each may import those of the lines above its own, and no others. So
there are no cycles; client and server know nothing of each other, nor policies of engines, nor the store of runs."""

LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports(source: str) -> Iterator[str]:
    """The packages and top-level modules of ours that a source text imports, or names as "fedbalancer.module:thing"."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports are not used here"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            names = [node.value.partition(":")[0]]
        for name in names:
            package, _, rest = name.partition(".")
            home = rest.partition(".")[0]
            home = fedbalancer._HOMES.get(home, home).partition(".")[0]  # a public name is where it is taken from
            if package == "fedbalancer" and home in LEVEL:
                yield home


def upward() -> set[tuple[str, str]]:
    """Every file that imports something which is not on a line above its own, and what that is."""
    found = set()
    for file in ROOT.rglob("*.py"):
        place = file.relative_to(ROOT)
        home = place.parts[0].removesuffix(".py")
        if home in ("__init__", "__main__"):  # the public names stand above everything
            continue
        for name in imports(file.read_text(encoding="utf-8")):
            if name != home and LEVEL[name] >= LEVEL[home]:
                found.add((place.as_posix(), name))
    return found


def test_every_package_has_a_place_in_the_order() -> None:
    there = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert there - {"__init__", "__main__"} == LEVEL.keys()
    assert len(LEVEL) == sum(map(len, LAYERS)), "no name stands in two lines"


def test_no_import_points_upwards_or_sideways() -> None:
    assert upward() == set()


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("client", "server"), ("server", "client"), ("server", "simulation"), ("client", "simulation"),
        ("client", "methods"), ("server", "flower"), ("methods", "simulation"), ("store", "experiments"),
        ("simulation", "data"), ("training", "data"), ("simulation", "experiments"), ("simulation", "flower"),
        ("reporting", "experiments"), ("experiments", "paper"), ("flower", "paper"), ("data", "paper"),
    ],
)  # fmt: skip
def test_the_order_keeps_these_apart(importer: str, imported: str) -> None:
    assert LEVEL[imported] >= LEVEL[importer]


def test_late_and_type_only_imports_are_seen() -> None:
    source = """
import fedbalancer.core.files, numpy
from fedbalancer import __version__, core, run
from fedbalancer.data.source import Source
if TYPE_CHECKING:
    from fedbalancer.methods.table import Method
def late():
    from fedbalancer.simulation.engine import Simulated
LOADER = "fedbalancer.data.tasks.watch:load"
"""
    assert sorted(imports(source)) == ["core", "core", "data", "data", "experiments", "methods", "simulation"]
