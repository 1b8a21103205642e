"""The promises of the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess

import commands
import polars as pl
import pytest

from fedbalancer.cli.compare import DEMO
from fedbalancer.methods.names import parse_method_name

Cli = Callable[..., "CompletedProcess[str]"]
SMALL = ("synthetic", "--users", "8", "--rounds", "3", "--set", "clients_per_round=3", "--set", "eval_every=1")


def refused(done: CompletedProcess[str]) -> str:
    """The one line of a refusal: exit code 2, nothing on stdout, no traceback."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "wach"), "did you mean watch"),
        (("run", "synthetic", "--method", "fedbalancr"), "did you mean fedbalancer"),
        (("run", "synthetic", "--method", "fedbalancer+batch"), "did you mean +batches"),
        (("run", "synthetic", "--scale", "smal"), "did you mean small"),
        (("run", "synthetic", "--set", "learningrate=1"), "did you mean learning_rate"),
        (("run", "synthetic", "--set", "learning_rate=-1"), "learning_rate = -1"),
        (("run", "synthetic", "--set", "learning_rate=nan"), "learning_rate"),
        (("run", "synthetic", "--set", "optimizer=adamz"), "did you mean adam"),
        (("run", "synthetic", "--set", "optimizer=adam(weight_decay=-1)"), "weight_decay"),
        (("run", "synthetic", "--set", "p=0.2"), "must be a number >= 0.5 and <= 1"),
        (("run", "synthetic", "--set", "w"), "key=value"),
        (("run", "synthetic", "--set", "latency=tablet"), "unknown latency row 'tablet'"),
        (("run", "synthetic", "--set", "deadlin=a:b"), "did you mean deadline"),
        (("run", "synthetic", "--set", "deadline=json:dumps"), "not a policy for that slot"),
        (("run", "synthetic", "--set", "availability=nowhere.json"), "nowhere.json"),
        (("run", "synthetic", "--rounds", "0"), "rounds = 0"),
        (("run", "synthetic", "--budget", "-5"), "budget = -5"),
        (("run", "synthetic", "--seed", "-1"), "seed = -1"),
        (("run", "synthetic", "--target", "80"), "80% is 0.8"),
        (("compare", "--add", "nowhere"), "nowhere holds no comparison"),
        (("compare", "--add", "c", "--out", "d"), "--add names the folder that grows"),
        (("merge", "nowhere", "--out", "c"), "nowhere holds no comparison"),
        (("run", "synthetic", "--target", "0.5", "--timing-only"), "only simulates the clock"),
        (("run", "synthetic", "--config", "missing.toml"), "missing.toml"),
        (("run", "synthetic", "--backend", "fats"), "did you mean fast"),
        (("run", "synthetic", "--device", "tpu"), "device = 'tpu' must be cpu"),
        (("run", "synthetic", "--executor", "rya"), "did you mean ray"),
        (("run", "synthetic", "--workers", "0"), "workers = 0"),
        (("run", "synthetic", "--executor", "inline", "--workers", "3"), "executor inline has 1 worker"),
        (("run", "synthetic", "--address", "auto"), "--executor ray"),
        (("run", "synthetic", "--gpus", "0.25"), "gpus = 0.25 needs the device cuda (--device cuda), not cpu"),
        (("run", "synthetic", "--attack", "update-flop:1"), "did you mean update-flip"),
        (("run", "synthetic", "--attack", "update-flip"), "a number of clients"),
        (("compare", "synthetic", "--users", "8", "--attack", "update-flip:9"), "9 attackers are more than"),
        (("compare", "synthetic", "--backend", "fats"), "did you mean fast"),
        (("compare", "synthetic", "--jobs", "0"), "jobs = 0"),
        (("compare", "synthetic", "--executor", "rya"), "did you mean ray"),
        (("compare", "synthetic", "--methods", "fedavg+1t,fedavg+1t"), "appears twice"),
        (("compare", "synthetic", "--extend", "0.5"), "extend = 0.5"),
        (("resume", "nowhere"), "nowhere"),
        (("report", "nowhere"), "nowhere"),
        (("list", "task"), "did you mean tasks"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(cli: Cli, arguments: tuple[str, ...], words: str) -> None:
    assert words in refused(cli(*arguments))


def test_run_then_refuse_then_overwrite_then_report(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", *SMALL, "--method", "fedavg+1t", "--out", "r")
    assert done.returncode == 0, done.stderr
    assert "3 rounds" in done.stdout
    assert "100%" in done.stderr  # progress, in lines where there is no terminal
    assert "fedbalancer resume r" in refused(cli("run", *SMALL, "--method", "fedavg+1t", "--out", "r"))
    again = cli("run", *SMALL, "--method", "prox+1t", "--out", "r", "--overwrite", "--json")
    assert json.loads(again.stdout)["rounds"] == 3
    assert cli("report", "r").returncode == 0
    assert (tmp_path / "r" / "report.html").is_file()


def test_a_comparison_grows_and_is_merged(cli: Cli) -> None:
    small = ("synthetic", "--users", "8", "--rounds", "2", "--extend", "1", "--jobs", "1")
    for seed in ("0", "1"):
        done = cli("compare", *small, "-m", "fedavg+1t", "--seeds", f"{seed}..{seed}", "--out", seed)
        assert done.returncode == 0, done.stderr
    assert "users is 8 in 0, 9 in what is added" in refused(cli("compare", "--add", "0", "--users", "9"))
    assert "rule is fair in 0, paper in what is added" in refused(cli("compare", "--add", "0", "--rule", "paper"))
    grown = cli("compare", "--add", "0", "-m", "fedavg+wfa", "--jobs", "1")
    assert grown.returncode == 0, grown.stderr
    assert "fedavg+wfa" in grown.stdout
    merged = cli("merge", "0", "1", "--out", "both", "--json")
    assert merged.returncode == 0, merged.stderr
    assert set(json.loads(merged.stdout)["methods"]) == {"fedavg+1t", "fedavg+wfa"}
    assert "not done yet: fedavg+wfa seed 1; to run what is missing: fedbalancer resume both" in merged.stderr
    assert "already holds a comparison" in refused(cli("merge", "0", "1", "--out", "both"))


def test_a_run_ends_when_it_reaches_its_target(cli: Cli) -> None:
    done = cli("run", *SMALL, "--method", "fedavg+1t", "--target", "0.01", "--out", "r")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("done (reached the target 0.01): synthetic")
    assert ": 1 rounds," in done.stdout


def test_a_backend_is_kept_by_resume_and_executors_leave_no_trace(cli: Cli, tmp_path: Path) -> None:
    begun = cli("run", *SMALL, "--method", "fedavg+1t", "--backend", "plain", "--executor", "pool", "--workers", "2",
                "--out", "r")  # fmt: skip
    assert begun.returncode == 0, begun.stderr
    manifest = json.loads((tmp_path / "r" / "manifest.json").read_text())
    assert (manifest["backend"], manifest["device"]) == ("plain", "cpu")
    assert not {"executor", "workers", "address"} & set(manifest)
    assert cli("resume", "r", "--executor", "inline").returncode == 0
    assert json.loads((tmp_path / "r" / "manifest.json").read_text())["backend"] == "plain"
    assert "did you mean plain" in refused(cli("resume", "r", "--backend", "plane"))


def test_compare_prints_the_table_and_json_has_its_shape(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = cli("compare", *SMALL, "--methods", "fedavg+1t,fedbalancer", "--seeds", "2", "--out", "c")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "c" / "table.md").read_text() in done.stdout, "what reads a pipe gets Markdown, as of report"
    assert "┃" not in done.stdout
    assert "report.html" in done.stdout
    resumed = cli("resume", "c", "--json")
    assert resumed.returncode == 0, resumed.stderr
    result = json.loads(resumed.stdout)
    assert {"target", "budget_s", "methods"} <= set(result)
    for method in ("fedavg+1t", "fedbalancer"):
        assert set(result["methods"][method]["speedup"]) - {"bound"} == {"mean", "std", "low", "high", "reached"}
        assert set(result["methods"][method]["accuracy"]) >= {"mean", "std"}
    assert (result["rule"], set(result["methods"]["fedbalancer"]["targets"])) == ("fair", {"1", "0.95", "0.9"})
    everything = pl.read_parquet(tmp_path / "c" / "**" / "rounds.parquet")
    assert set(everything.select("task", "method", "seed").unique().rows()) == {
        ("synthetic", method, seed) for method in ("fedavg+1t", "fedbalancer") for seed in (0, 1)
    }
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    (tmp_path / "c" / "fedbalancer" / "seed-1" / "evals.parquet").write_bytes(b"PAR1")
    shown = cli("report", "c")
    assert "┃ Method" in shown.stdout
    assert shown.returncode == 2
    assert "error: damaged: fedbalancer seed 1: evals.parquet" in shown.stderr


@pytest.mark.skipif(find_spec("seglearn") is None, reason="the recordings need the extra [demo]")
def test_without_a_task_it_is_the_demo_and_options_change_it(cli: Cli, tmp_path: Path) -> None:
    done = cli("compare", "--users", "6", "--rounds", "3", "--seeds", "1")
    assert done.returncode == 0, done.stderr
    made = json.loads((tmp_path / "runs" / "compare-demo" / "comparison.json").read_text())
    assert (made["methods"], made["task"], made["seeds"]) == (list(DEMO.methods), DEMO.task, [0])
    assert (made["extend"], made["spec"]["users"], made["rounds"]) == (DEMO.extend, 6, 3)


def test_a_folder_can_be_scored_by_either_rule_and_other_targets(cli: Cli, tmp_path: Path) -> None:
    done = cli("compare", *SMALL, "--methods", "fedavg+1t,prox+1t", "--seeds", "1", "--rule", "paper", "--out", "c")
    assert done.returncode == 0, done.stderr
    assert "paper's rule" in done.stdout
    assert json.loads((tmp_path / "c" / "comparison.json").read_text())["rule"] == "paper"
    assert json.loads(cli("report", "c", "--json").stdout)["rule"] == "paper"
    fair = cli("report", "c", "--rule", "fair", "--target", ".9,.5")
    assert "evaluated by rounds only" in fair.stdout
    assert "the runs were stopped by the rule paper" in fair.stdout
    assert json.loads((tmp_path / "c" / "summary.json").read_text())["targets"] == [0.9, 0.5]
    assert cli("report", "c", "--stamp", "start").returncode == 0
    assert "requires the rule 'paper'" in refused(cli("report", "c", "--stamp", "start", "--rule", "fair"))
    assert "shares like" in refused(cli("report", "c", "--target", "most"))
    assert "greater than 0" in refused(cli("report", "c", "--target", "0"))
    assert "did you mean fair" in refused(cli("report", "c", "--rule", "fare"))


def test_settings_come_from_toml_and_the_command_line_wins(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "fedbalancer.toml").write_text("w = 7\nlss = 0.1\n")
    assert cli("run", *SMALL, "--set", "w=3", "--out", "r").returncode == 0
    settings = json.loads((tmp_path / "r" / "manifest.json").read_text())["settings"]
    assert (settings["w"], settings["lss"]) == (3, 0.1)
    (tmp_path / "fedbalancer.toml").write_text("w = [")
    assert "TOML" in refused(cli("run", *SMALL, "--out", "other"))


RUN, COMPARE = (
    ("run", "--method", "fedbalancer", "--timing-only"),
    ("compare", "--methods", "fedbalancer", "--seeds", "1"),
)


@pytest.mark.parametrize(
    ("command", "given", "expected"),
    [
        (RUN, ("w=3",), {"samples": "mine:Samples", "clients": "mine:Clients"}),
        (RUN, ("clients=mine:Other",), {"samples": "mine:Samples", "clients": "mine:Other"}),
        (
            RUN,
            ('work="mine:Work"', 'clients = "mine:Other"'),
            {"samples": "mine:Samples", "clients": "mine:Other", "work": "mine:Work"},
        ),
        (
            COMPARE,
            ("work=mine:Work",),
            {"samples": "mine:Samples", "clients": "mine:Clients", "work": "mine:Work"},
        ),
    ],
)
def test_slots_of_the_command_line_are_added_to_those_of_the_file(
    cli: Cli, tmp_path: Path, command: tuple[str, ...], given: tuple[str, ...], expected: dict[str, str]
) -> None:
    (tmp_path / "mine.py").write_text(
        "from fedbalancer.methods.table import method\n"
        "plain = method('fedavg+1t')\n"
        "Samples, Clients, Work = type(plain.samples), type(plain.clients), type(plain.work)\n"
        "Other = Clients\n"
    )
    slots = 'samples = "mine:Samples"\nclients = "mine:Clients"\n'
    (tmp_path / "own.toml").write_text(f"w = 7\n{slots}")
    sets = [part for text in given for part in ("--set", text)]
    done = cli(command[0], *SMALL, *command[1:], "--config", "own.toml", *sets, "--out", "r")
    assert done.returncode == 0, done.stderr
    (manifest,) = (tmp_path / "r").rglob("manifest.json")
    written = json.loads(manifest.read_text())
    assert parse_method_name(written["method"]).slots == expected
    assert written["settings"]["w"] == (3 if "w=3" in given else 7)


@pytest.mark.parametrize("what", ["tasks", "methods", "devices", "policies", "attacks", "settings", "columns"])
def test_list(cli: Cli, what: str) -> None:
    assert cli("list", what).returncode == 0
    assert json.loads(cli("list", what, "--json").stdout)


@pytest.mark.parametrize(("what", "typed"), [("settings", ["key"]), ("columns", ["table", "column"])])
def test_what_one_has_to_type_is_listed_whole(cli: Cli, tmp_path: Path, what: str, typed: list[str]) -> None:
    shown = commands.run(tmp_path, "list", what, COLUMNS="80", NO_COLOR="1", TERM="dumb").stdout
    for row in json.loads(cli("list", what, "--json").stdout):
        assert all(re.search(rf"│ {re.escape(row[name])} +│", shown) for name in typed)


def test_the_list_of_policies_says_which_name_brings_each(cli: Cli) -> None:
    rows = json.loads(cli("list", "policies", "--json").stdout)
    users = {(row["slot"], row["policy"]): row["used by"].split(", ") for row in rows}
    assert all(row["what it does"] for row in rows)
    assert users["threshold", "TrackedThreshold"] == [""]  # only by its name
    assert users["samples", "Trimmed"] == ["+trimmed"]
    assert users["work", "ForecastBatches"] == users["work", "ForecastEpochs"] == ["+forecast"]
    assert users["samples", "OverThreshold"] == ["fedbalancer", "canter"]
    assert users["model_average", "AveragedModel"] == ["canter", "+averaged"]


def test_a_diverging_run_fails_in_words(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", *SMALL[:-4], "--rounds", "50", "--set", "learning_rate=1000",
               "--set", "prox_mu=900", "--method", "prox+2t", "--out", "r")  # fmt: skip
    line = refused(done)
    assert "round" in line
    assert "client" in line
    assert json.loads((tmp_path / "r" / "manifest.json").read_text())["status"] == "failed"
