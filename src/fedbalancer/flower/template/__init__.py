"""A new Flower app with FedBalancer in it, written from the templates beside this file.

Texts end in .txt because they are no modules of ours: `@NAME@` becomes the name of the user's package, `@PROJECT@` that
of the project, which Flower wants without underscores.
"""

from __future__ import annotations

import keyword
import re
import sys
import unicodedata
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.files import write_bytes

EXTRAS = {"torch": "torch,flower", "numpy": "flower", "litert": "device"}
"""The frameworks that there is a client for, and what their app has to install."""

AT_THE_TOP = ("pyproject.toml", "README.md", "DEVICE.md", "model.tflite")
TAKEN = {"fedbalancer", "flwr", "ai_edge_litert", "numpy", "test", "torch", *keyword.kwlist} | sys.stdlib_module_names
LONGEST_PROJECT = 32
"""Characters of a project's name that Flower takes."""


def package_name(folder: Path) -> str:
    """The name of a folder as that of a Python package. Accents are removed.

    >>> package_name(Path("apps/My first-app"))
    'my_first_app'
    >>> package_name(Path("2nd.App"))
    'app_2nd_app'
    >>> package_name(Path("Ünï"))
    'uni'
    """
    parts = unicodedata.normalize("NFKD", folder.resolve().name.casefold())
    plain = "".join(character for character in parts if not unicodedata.combining(character))
    name = re.sub(r"[\W_]+", "_", plain, flags=re.ASCII).strip("_")
    name = f"app_{name}" if name[:1].isdigit() else name
    if not name.isidentifier() or name in TAKEN:
        raise BadSetting(
            f"{folder}: its name becomes that of a Python package, and {name!r} cannot be one; "
            "choose a name of letters and digits that is no package already, such as my_app"
        )
    return name


def project_name(package: str) -> str:
    """The name of a package as that of a project: Flower takes letters, digits and hyphens, and not many.

    >>> project_name("my_first_app")
    'my-first-app'
    """
    return package.replace("_", "-")[:LONGEST_PROJECT].rstrip("-")


def app_files(name: str, framework: str) -> dict[str, bytes]:
    """What a new app consists of: relative path -> content."""
    if framework not in EXTRAS:
        raise UnknownName("framework", framework, EXTRAS)
    here = files(__package__)
    words = {"@NAME@": name, "@PROJECT@": project_name(name), "@EXTRAS@": EXTRAS[framework]}
    found = {f"{name}/__init__.py": b""}
    for part in ("app", framework):
        for source in sorted((here / part).iterdir(), key=_name):
            file = source.name.removesuffix(".txt")
            path = file if file in AT_THE_TOP else f"{name}/{file}"
            found[path] = source.read_bytes()
            if file != source.name:
                for word, meant in words.items():
                    found[path] = found[path].replace(word.encode(), meant.encode())
    return found


def write_app(folder: Path, framework: str) -> list[Path]:
    """Write a new app into a folder that is not there or empty; the files."""
    contents = app_files(package_name(folder), framework)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadSetting(f"{folder} is there already and not an empty folder; choose another one")
        for path, content in contents.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(folder / path, content)
    except OSError as error:
        raise BadSetting(f"{folder} cannot be written: {error}") from error
    return [folder / path for path in contents]


def _name(source: Traversable) -> str:
    return source.name
