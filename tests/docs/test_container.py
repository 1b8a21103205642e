"""The container's recipe names files, extras and commands that there are. Nothing is built here."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
KNOWN = {"FROM", "RUN", "WORKDIR", "COPY", "ENTRYPOINT", "CMD"}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    loaded: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return loaded


def instructions() -> list[tuple[str, str]]:
    """The lines of the Dockerfile, without comments, joined where they go on."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = [line.strip() for line in re.sub(r"\\\n\s*", "", text).splitlines()]
    return [(line.split()[0], line.partition(" ")[2]) for line in lines if line]


def named_extras(command: str) -> set[str]:
    return {extra for group in re.findall(r"\.\[([\w,]+)\]", command) for extra in group.split(",")}


def test_every_instruction_is_one_and_the_first_is_from() -> None:
    words = [word for word, _ in instructions()]
    assert words[0] == "FROM"
    assert set(words) <= KNOWN


def test_python_is_one_that_the_package_takes(project: dict[str, Any]) -> None:
    first = instructions()[0][1]
    found = re.match(r"python:3\.(\d+)", first)
    assert found, first
    assert int(found[1]) >= int(project["requires-python"].removeprefix(">=3."))


def test_what_is_copied_is_there_and_not_ignored() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {source for word, rest in instructions() if word == "COPY" for source in shlex.split(rest)[:-1]}
    assert copied == kept
    assert [source for source in copied if not (ROOT / source).exists()] == []


def test_what_is_installed_is_an_extra_and_the_entry_is_our_command(project: dict[str, Any]) -> None:
    lines = instructions()
    installed = named_extras(" ".join(rest for word, rest in lines if word == "RUN"))
    assert installed
    assert installed <= set(project["optional-dependencies"])
    (entry,) = json.loads(next(rest for word, rest in lines if word == "ENTRYPOINT"))
    assert entry in project["scripts"]


def test_the_package_of_the_container_needs_no_file_that_is_not_copied(project: dict[str, Any]) -> None:
    copied = {source for word, rest in instructions() if word == "COPY" for source in shlex.split(rest)[:-1]}
    assert {project["readme"], *project["license-files"], "src", "pyproject.toml"} <= copied


def test_the_development_container_builds_a_stage_that_there_is(project: dict[str, Any]) -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    stages = {rest.split(" AS ")[1] for word, rest in instructions() if word == "FROM"}
    assert container["build"]["target"] in stages
    assert (ROOT / ".devcontainer" / container["build"]["dockerfile"]).resolve() == ROOT / "Dockerfile"
    assert named_extras(container["postCreateCommand"]) <= set(project["optional-dependencies"])
