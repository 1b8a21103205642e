"""Every command and every block of Python of README and pages is typed by a test, or has its reason in the ledger."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import click
import pytest
import typer
from docs.ledger import LATER, NOT_TYPED, NOW, PATTERNS, PYTHON, RUN

from docs import snippets
from fedbalancer.cli.app import app

SHOWN = sorted({found.text for found in snippets.commands()})
OWN = sorted({text for text in SHOWN if text.startswith("fedbalancer ")} | {found.text for found in snippets.named()})


def typed(command: str, folder: Path) -> None:
    """A command as a reader types it, in a folder."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "NO_COLOR": "1"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=3000, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"
    assert "Traceback" not in done.stderr


def first_line(block: str) -> str:
    return re.split(r"\s+#", block.strip().splitlines()[0])[0].strip()


def test_every_command_is_typed_or_has_a_reason() -> None:
    known = {*NOW, *LATER, *NOT_TYPED}
    unknown = [
        f"{found.page}: {found.text}"
        for found in snippets.commands()
        if found.text not in known and not any(re.fullmatch(pattern, found.text) for pattern in PATTERNS)
    ]
    assert unknown == [], "add a line to tests/docs/ledger.py"


def test_the_ledger_has_nothing_that_no_page_shows() -> None:
    assert [text for text in (*NOW, *LATER, *NOT_TYPED) if text not in SHOWN] == []
    for pattern in PATTERNS:
        assert any(re.fullmatch(pattern, text) for text in SHOWN), pattern
    there = {(found.page, first_line(found.text)) for found in snippets.python()}
    assert [key for key in PYTHON if key not in there] == []


def test_reasons_name_tests_that_exist() -> None:
    reasons = (*NOT_TYPED.values(), *PATTERNS.values(), *PYTHON.values())
    named = {name for reason in reasons for name in re.findall(r"tests/[\w/]+\.py", reason)}
    assert len(named) > 10
    assert [name for name in named if not (snippets.ROOT / name).exists()] == []


@cache
def command_line() -> click.Command:
    return typer.main.get_command(app)


def read(command: str) -> None:
    """Have a command read by the command line itself, and not run."""
    words = shlex.split(command)[1:]
    reader = command_line()
    context = click.Context(reader)
    while isinstance(reader, click.Group) and words and not words[0].startswith("-"):
        name, found, words = reader.resolve_command(context, words)
        assert found is not None
        reader, context = found, click.Context(found, parent=context, info_name=name)
    _, rest, _ = reader.make_parser(context).parse_args(list(words))
    assert rest == []


@pytest.mark.parametrize("command", [text for text in OWN if "[--" not in text])  # one with that is a pattern
def test_every_command_of_ours_has_only_words_and_options_that_there_are(command: str) -> None:
    read(command)


@pytest.mark.parametrize(
    "command", ["fedbalancer runn watch", "fedbalancer run watch --metod fedavg+1t", "fedbalancer data drop har"]
)
def test_a_renamed_option_or_command_cannot_stay_in_a_page(command: str) -> None:
    with pytest.raises(click.UsageError):
        read(command)


def test_python_is_run_or_has_a_reason() -> None:
    unknown = [
        f"{found.page}: {first_line(found.text)}"
        for found in snippets.python()
        if (found.page, first_line(found.text)) not in PYTHON and not (found.page in RUN and found.fenced)
    ]
    assert unknown == [], "add a line to tests/docs/ledger.py"


@pytest.mark.parametrize("page", RUN)
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (snippets.ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    exec("\n".join(blocks), {"__name__": page})


@pytest.mark.timeout(900)
def test_short_commands_run_as_they_stand(tmp_path: Path) -> None:
    for command in NOW:
        typed(command, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(6000)
def test_long_commands_run_as_they_stand(tmp_path: Path) -> None:
    for number, command in enumerate(LATER):
        folder = tmp_path / (f"run-{number}" if command.startswith("fedbalancer run ") else "all")
        folder.mkdir(exist_ok=True)
        typed(command, folder)
