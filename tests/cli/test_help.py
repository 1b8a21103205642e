"""Help, completion and the doctor: what a newcomer types first."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from cli.conftest import Cli

HEAVY = ("numpy", "torch", "polars", "scipy", "matplotlib", "plotly", "pydantic", "flwr", "ray", "jinja2")
MAIN = "import sys; sys.argv[0] = 'fedbalancer'; from fedbalancer.cli import main; main()"


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["compare", "-h"], ["run", "--help"], ["data", "-h"]])
def test_help_imports_nothing_that_computes(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom fedbalancer.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        f"print('imported:', *(name for name in {HEAVY} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage: " in done.stdout
    assert done.stdout.splitlines()[-1].strip() == "imported:"


@pytest.mark.parametrize(("typed", "meant"), [("rum", "run"), ("data lst", "list"), ("paper tabel1", "table1")])
def test_a_mistyped_command_is_answered_with_one_suggestion(cli: Cli, typed: str, meant: str) -> None:
    done = cli(*typed.split())
    assert done.returncode == 2
    assert done.stderr.count("Did you mean") == 1
    assert f"'{meant}'" in done.stderr


def test_the_shell_completes_commands_options_tasks_and_methods() -> None:
    def completed(words: str) -> list[str]:
        asked = {
            "_FEDBALANCER_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        }
        done = subprocess.run(
            [sys.executable, "-c", MAIN], env={**os.environ, **asked}, capture_output=True, text=True, check=False
        )
        return done.stdout.split()

    assert completed("fedbalancer comp") == ["compare"]
    assert completed("fedbalancer compare --meth") == ["--methods", "--method"]
    assert completed("fedbalancer run syn") == ["synthetic"]
    assert completed("fedbalancer compare watch --methods prox+1t,fedbal") == ["prox+1t,fedbalancer"]


def test_the_doctor_has_a_line_for_each_thing_and_an_exit_code(cli: Cli) -> None:
    done = cli("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert all(line.split()[0] in ("ok", "note") for line in lines)
    for what in (
        "Python: 3.",
        "numpy: ",
        "polars: ",
        "torch: ",
        "compiler: ",
        "cores: ",
        "data folder: ",
        "disk here: ",
    ):
        assert any(line[8:].startswith(what) for line in lines), what


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        ("adamw(weight_decay=0.01)", "backend plain; optimizer adamw(weight_decay=0.01) runs on torch's own step"),
        ("sgd(momentum=0.9)", "backend fast; sgd(momentum=0.9)"),
    ],
)
def test_the_doctor_says_which_backend_trains_a_task_and_why(optimizer: str, said: str, cli: Cli) -> None:
    done = cli("doctor", "synthetic", "--set", f"optimizer={optimizer}", "--json")
    words = {each["what"]: each["words"] for each in json.loads(done.stdout)}["training of synthetic"]
    assert words.startswith(said)


def test_the_doctor_names_what_is_missing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    found = {each["what"]: each for each in json.loads(cli("doctor", "--json").stdout)}
    assert found["compiler"]["state"] == "note"
    assert "no-such-compiler not found" in found["compiler"]["words"]
    assert "kernels" not in found


def test_a_problem_is_exit_code_two(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import typer

    from fedbalancer.cli import doctor

    monkeypatch.setattr(doctor, "LEAST_FREE_BYTES", 10**18)
    monkeypatch.setenv("CC", "no-such-compiler")  # nothing is compiled for this
    with pytest.raises(typer.Exit) as ended:
        doctor.doctor()
    assert ended.value.exit_code == 2
    assert "problem disk here: " in capsys.readouterr().out


def test_settings_are_listed_with_their_valid_values(cli: Cli) -> None:
    rows = {row["key"]: row["allowed"] for row in json.loads(cli("list", "settings", "--json").stdout)}
    assert rows["p"] == "a number >= 0.5 and <= 1"
    assert rows["forward_pass"] == "first or every"
    assert rows["eval_every_s"] == "a number > 0 and <= 1e+09; off"
    assert rows["clients.normalise"] == "true or false"
    assert all(rows.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "synthetic", "--methods", "a,b"), "a run has one method"),
        (("compare", "synthetic", "--method", "fedbalancer[w=5"), "not closed"),
        (("compare", "synthetic", "-m", "nosuch"), "unknown method 'nosuch'"),
    ],
)
def test_every_command_accepts_method_and_methods(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    done = cli(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
