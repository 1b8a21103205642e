"""Templates of a new Flower app, for `fedbalancer flower new`.

Templates end in .txt because they are not modules of this package. `@NAME@` becomes the name of the user's package,
`@PROJECT@` that of the project, which must not have underscores.
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
"""The supported frameworks, and the extras that their app installs."""

AT_THE_TOP = ("pyproject.toml", "README.md", "DEVICE.md", "model.tflite")
TAKEN = {"fedbalancer", "flwr", "ai_edge_litert", "numpy", "test", "torch", *keyword.kwlist} | sys.stdlib_module_names
LONGEST_PROJECT = 32
"""Longest project name that Flower accepts, in characters."""


def package_name(folder: Path) -> str:
    """Return the name of a folder as the name of a Python package, without accents.

    Raises:
        BadSetting: The name cannot be that of a new package.

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
            f"{folder}: its name becomes that of a Python package, and {name!r} is not valid; "
            "choose letters and digits, and not the name of an existing package, for example my_app"
        )
    return name


def project_name(package: str) -> str:
    """Return the name of a package as a project name: letters, digits and hyphens, at most 32 characters.

    >>> project_name("my_first_app")
    'my-first-app'
    """
    return package.replace("_", "-")[:LONGEST_PROJECT].rstrip("-")


def app_files(name: str, framework: str) -> dict[str, bytes]:
    """Return the files of a new app: relative path -> content.

    Raises:
        UnknownName: The framework is not supported.
    """
    if framework not in EXTRAS:
        raise UnknownName("framework", framework, EXTRAS)
    here = files(__package__)
    words = {"@NAME@": name, "@PROJECT@": project_name(name), "@EXTRAS@": EXTRAS[framework]}
    contents = {f"{name}/__init__.py": b""}
    for part in ("app", framework):
        for source in sorted((here / part).iterdir(), key=_name):
            file = source.name.removesuffix(".txt")
            path = file if file in AT_THE_TOP else f"{name}/{file}"
            contents[path] = source.read_bytes()
            if file != source.name:
                for word, replacement in words.items():
                    contents[path] = contents[path].replace(word.encode(), replacement.encode())
    return contents


def write_app(folder: Path, framework: str) -> list[Path]:
    """Write a new app into a folder that does not exist or is empty; returns its files.

    Raises:
        BadSetting: The folder is in use or cannot be written.
    """
    contents = app_files(package_name(folder), framework)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadSetting(f"{folder} exists and is not an empty folder; choose another one")
        for path, content in contents.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(folder / path, content)
    except OSError as error:
        raise BadSetting(f"{folder} cannot be written: {error}") from error
    return [folder / path for path in contents]


def _name(source: Traversable) -> str:
    return source.name
