"""The table says who was best, against what, and what could not be scored."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from reporting.full import complete
from rich.console import Console

from fedbalancer.reporting import Comparison, RunCurve, score, score_folder
from fedbalancer.reporting.tables import make_rows, make_sheets, markdown_table, rich_table

LONG = tuple(f"fedbalancer[w=2,deadline=slackdl:MedianSlack(slack={slack})]" for slack in (2, 5))


@pytest.fixture(scope="module")
def three_seeds(tmp_path_factory: pytest.TempPathFactory, make_comparison: Callable[..., Path]) -> Comparison:
    """Long names, and everything that a table can show of them."""
    folder = make_comparison(tmp_path_factory.mktemp("long") / "c", methods=("fedavg+1t", "oort", *LONG))
    for each in folder.glob("*/seed-*"):
        complete(each)
    return score_folder(folder)


def in_terminal(comparison: Comparison, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(rich_table(comparison))
    return console.export_text()


def run(method: str, seed: int, time_s: float, accuracy: float, status: str = "done") -> RunCurve:
    frame = pl.DataFrame({"start_s": [time_s - 1], "clock_s": [time_s], "accuracy": [accuracy]})
    traffic = pl.DataFrame(
        {
            "start_s": [1.0, 1e8],
            "end_s": [time_s, 1e9],
            "down_bytes": [2_500_000, 7],
            "up_bytes": [1000 * (seed + 1), 7],
        }
    )
    return RunCurve(method, seed, frame, status, traffic=None if method == "oort" else traffic)


def small(**more: object) -> Comparison:
    runs = [run("fedavg+1t", s, 100.0, 0.8) for s in (0, 1)] + [
        run("fedbalancer", s, 50.0 - 10 * s, 0.85) for s in (0, 1)
    ]
    runs += [run("oort", 0, 10.0, 0.5), run("oort", 1, 3.0, 0.5, "failed")]
    return score(runs, {0: 100.0, 1: 100.0}, rule="paper", task="har", variant="synthetic", rounds=50, **more)  # type: ignore[arg-type]


def test_nothing_in_the_tables_is_html() -> None:
    comparison = replace(small(), task="<img src=x onerror=alert(1)>", notes=("</td><script>x</script>",))
    text = markdown_table(comparison)
    assert not re.search("<[a-z/!?]", text)
    assert "&lt;img src=x" in text


def test_the_markdown_table_has_a_row_per_method_with_the_best_in_bold() -> None:
    lines = markdown_table(small()).splitlines()
    assert "| fedavg+1t | 1.00 ± 0.00 | 2/2 | 100 s | 0.800 ± 0.000 |" in lines
    assert "| fedbalancer | **2.25 ± 0.35** | 2/2 | 40 s | **0.850 ± 0.000** |" in lines
    assert "| oort | never | 0/1 | > 10 s | 0.500 |" in lines
    assert "| fedavg+1t | – | – | 2.5 MB / 2.5 MB | 1.5 kB / 1.5 kB |" in lines
    assert "| oort | – | – | – | – |" in lines


def test_a_method_that_never_arrived_says_so_and_is_not_the_best() -> None:
    runs = [run("fedavg+1t", s, 100.0, 0.8) for s in (0, 1)] + [run("oort", s, 10.0, 0.5) for s in (0, 1)]
    found = score(runs, {0: 100.0, 1: 100.0}, rule="paper")
    assert "| oort | never | 0/2 | > 10 s | 0.500 ± 0.000 |" in markdown_table(found).splitlines()
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(rich_table(found))
    assert "never" in console.export_text()


def test_the_captions_say_what_a_reader_must_know() -> None:
    text = markdown_table(small())
    for needed in (
        "har (synthetic)",
        "0.800",
        "100 s",
        "best final accuracy",
        "50 rounds",
        "ddof 1",
        "seeds: 0, 1",
        "end of",
    ):
        assert needed in text
    assert "- oort, seed 1 is not scored" in text
    legacy = markdown_table(small(stamp="start"))
    assert "start (as in the authors' notebooks)" in legacy
    assert "budget 99 s" in legacy
    assert "fedavg+1t at the start of the last of 50 rounds" in legacy


def test_a_comparison_without_fedavg_names_its_reference() -> None:
    text = markdown_table(score([run("prox+1t", 0, 10.0, 0.8), run("oort", 0, 5.0, 0.8)], {0: 10.0}, rule="paper"))
    assert "relative to prox+1t, the first method" in text


def test_nothing_scored_still_makes_a_table() -> None:
    text = markdown_table(score([], {}, methods=["a|b"]))
    assert "nothing scored yet" in text
    assert "| a\\|b | – | 0/0 | – | – |" in text


def test_the_terminal_table_shows_the_same_numbers_and_no_markup() -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(rich_table(small()))
    text = console.export_text()
    assert "2.25 ± 0.35" in text
    assert "[bold]" not in text
    assert "har (synthetic)" in text


@pytest.mark.parametrize("width", [80, 100, 140])
def test_in_a_terminal_no_number_is_cut_and_the_whole_name_is_there(three_seeds: Comparison, width: int) -> None:
    text = in_terminal(three_seeds, width)
    sheets = [make_rows(three_seeds), *(sheet.rows for sheet in make_sheets(three_seeds))]
    assert len(sheets) == 4
    for _, *cells in (row for rows in sheets for row in rows):
        for part in (part for cell in cells for part in re.split(r" (?=\()|(?<=\)), | / ", cell.text)):
            assert part in text, "a number is on one line"
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    names = "".join(re.findall(r"^(?:│ )? *(\S+)", text, re.MULTILINE))
    assert [names.count(name) for name in LONG] == [4, 4]


def test_two_seeds_show_no_interval_and_three_do(three_seeds: Comparison) -> None:
    assert re.search(r"\d× \(\d", markdown_table(three_seeds))
    curves = [run for run in three_seeds.runs if run.seed < 2]
    two = score(curves, dict.fromkeys((0, 1), 10_000.0), methods=["fedavg+1t", *LONG])
    text = markdown_table(two)
    assert " to " not in "".join(line for line in text.splitlines() if line.startswith("|"))
    assert "under three seeds no interval is shown" in text
    assert json.loads(json.dumps(two.to_json()))["methods"][LONG[0]]["speedup"]["high"] is not None, "files keep it"
