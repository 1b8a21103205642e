"""A folder of results as boards of tasks x methods, with the comparisons of users beside them."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from reporting.conftest import write_comparison, write_run
from reporting.results_folder import NASTY, rows, write_results

from fedbalancer.core.errors import BadSetting, RunFolderError
from fedbalancer.reporting.leaderboard import make_boards, write_leaderboard
from fedbalancer.reporting.leaderboard_entries import Entry, add_comparison, read_entries


def test_every_row_of_every_item_is_an_entry(tmp_path: Path) -> None:
    found = read_entries(write_results(tmp_path / "results"))
    assert len(found) == 14
    ours = next(e for e in found if (e.task, e.method, e.target_share) == ("har", "fedbalancer", 1.0))
    assert (ours.ratio, ours.ratio_low, ours.item, ours.link) == (1.9, 1.4, "table1", "table1/table1.html")
    assert (ours.measured, ours.owner, ours.verdict) == ("2026-01-02", "", "faster")


@pytest.mark.parametrize(
    ("low", "high", "reached", "verdict"),
    [(1.1, 2.0, 3, "faster"), (0.5, 0.9, 3, "slower"), (0.9, 1.2, 3, "open"), (None, None, 3, "open"),
     (None, 0.6, 0, "slower")],
)  # fmt: skip
def test_the_interval_decides(low: float | None, high: float | None, reached: int, verdict: str) -> None:
    assert Entry("t", "m", reached=reached, ratio=1.0, ratio_low=low, ratio_high=high).verdict == verdict


def test_boards_hold_what_can_be_compared(tmp_path: Path) -> None:
    first, second = make_boards(read_entries(write_results(tmp_path / "results")))
    assert (first.target_share, second.target_share) == (1.0, 0.9)
    assert first.tasks == ("har", "femnist", NASTY)
    assert [row.method for row in first.rows] == ["fedavg+1t", "prox+1t", "fedbalancer", NASTY, "sampleselection",
        "fedbalancer[w=5,p=.75]", "oort",
    ]  # fmt: skip
    assert first.rows[3].cells[0] is None
    assert second.tasks == ("har",)


def test_a_users_method_stands_beside_the_projects_where_it_is_measured_alike() -> None:
    ours = Entry("har", "fedbalancer", "small", rule="fair", item="table1")
    theirs = Entry("har", "fedbalancer", "small", rule="fair", item="own", owner="ann")
    apart = Entry("har", "fedbalancer", "small", rule="paper", item="own", owner="ann")
    (board, other) = make_boards([ours, theirs, apart])
    assert [(row.method, row.owner) for row in board.rows] == [("fedbalancer", ""), ("fedbalancer", "ann")]
    assert [row.owner for row in other.rows] == ["ann"]


def test_of_two_measurements_of_a_cell_the_one_with_more_seeds_counts_and_of_equals_the_first() -> None:
    def measured(seeds: int, link: str) -> Entry:
        return Entry("har", "fedbalancer", "small", rule="fair", seeds=seeds, item="table1", link=link)

    for entries in ([measured(10, "a"), measured(5, "b")], [measured(5, "b"), measured(10, "a"), measured(10, "c")]):
        ((row,),) = [board.rows for board in make_boards(entries)]
        assert [cell and cell.link for cell in row.cells] == ["a"]


def test_every_cell_says_how_many_seeds_reached_the_target(tmp_path: Path) -> None:
    written = write_leaderboard(write_results(tmp_path / "results"))
    page, text = written.page.read_text(), written.text.read_text()
    cells = [cell for board in written.boards for row in board.rows for cell in row.cells if cell]
    assert page.count(" of 5 seeds</small>") == len(cells)
    assert "<small>1 of 5 seeds</small>" in page
    assert "[< 0.40 (… to 0.60) ▼](table1/table1.md), 0.800, 1 of 5 |" in text


def test_a_comparison_of_ones_own_enters_and_is_marked(tmp_path: Path) -> None:
    results = write_results(tmp_path / "results")
    folder = write_comparison(tmp_path / "my runs", methods=("fedavg+1t", "fedbalancer[w=5]"), seeds=(0, 1))
    place = add_comparison(folder, results, "Ann's <b>lab</b>")
    assert place.parent == results / "own"
    written = write_leaderboard(results)
    own = [entry for entry in written.entries if entry.owner]
    assert {entry.method for entry in own} == {"fedavg+1t", "fedbalancer[w=5]"}
    assert {entry.owner for entry in own} == {"Ann's <b>lab</b>"}
    assert (results / own[0].link.replace("%20", " ")).resolve() == folder.resolve()
    assert "Ann's &lt;b" in written.text.read_text()
    assert "<b>lab" not in written.page.read_text()
    add_comparison(folder, results, "Ann's <b>lab</b>")  # again: the same entries
    assert len(write_leaderboard(results).entries) == len(written.entries)


def test_a_folder_of_results_may_begin_with_ones_own(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "mine", methods=("fedavg+1t", "fedbalancer"), seeds=(0,))
    add_comparison(folder, tmp_path / "new", "own")
    assert {entry.owner for entry in write_leaderboard(tmp_path / "new").entries} == {"own"}


def test_what_is_no_comparison_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "fedbalancer", 0)
    with pytest.raises(RunFolderError, match="a single run"):
        add_comparison(tmp_path / "run", tmp_path / "results", "ann")
    with pytest.raises(RunFolderError, match="contains neither"):
        add_comparison(tmp_path / "nowhere", tmp_path / "results", "ann")
    with pytest.raises(BadSetting, match="printable"):
        add_comparison(tmp_path / "run", tmp_path / "results", "a\nb")


def test_folders_without_results_and_damaged_tables_are_told(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="there is no folder"):
        write_leaderboard(tmp_path / "nowhere")
    (tmp_path / "table1").mkdir()
    with pytest.raises(RunFolderError, match="contains no results"):
        write_leaderboard(tmp_path)
    table = tmp_path / "table1" / "methods.parquet"
    table.write_bytes(b"not parquet")
    with pytest.raises(RunFolderError, match="cannot be read"):
        write_leaderboard(tmp_path)
    pl.DataFrame({"task": ["har"]}).write_parquet(table)
    with pytest.raises(RunFolderError, match="no column method"):
        write_leaderboard(tmp_path)
    pl.DataFrame(rows("har", {"prox+1t": (1.0, 1.0, 1.0)})).write_parquet(table)
    (tmp_path / "table1" / "best.parquet").write_bytes(b"not parquet")
    with pytest.raises(RunFolderError, match=r"best\.parquet cannot be read"):
        write_leaderboard(tmp_path)
    (tmp_path / "table1" / "best.parquet").unlink()
    (tmp_path / "table1" / "item.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"item\.json cannot be read"):
        write_leaderboard(tmp_path)


def test_a_link_leads_nowhere_but_to_a_folder(tmp_path: Path) -> None:
    results = write_results(tmp_path / "results")
    place = add_comparison(write_comparison(tmp_path / "c", methods=("fedavg+1t",), seeds=(0,)), results, "eve")
    for link in ("javascript:alert(1)", "//evil.example/x", "https://evil.example"):
        entry = json.loads((place / "entry.json").read_text())
        (place / "entry.json").write_text(json.dumps({**entry, "link": link}))
        assert {each.link for each in read_entries(results) if each.owner} == {"own/eve-c"}


def test_markdown_has_a_table_for_every_board_and_no_row_breaks_it(tmp_path: Path) -> None:
    text = write_leaderboard(write_results(tmp_path / "results")).text.read_text()
    assert "| fedbalancer | project | [1.90 (1.40 to 2.50) ▲](table1/table1.md), 0.800, 5 of 5 |" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert "[< 0.40 (… to 0.60) ▼](table1/table1.md)" in text
    assert "fedbalancer\\[w=5" not in text
    assert "also lists 1 settings" in text
    assert "<img" not in text
    assert {line.replace("\\|", "").count("|") for line in lines} == {4, 6}


def test_the_best_settings_of_the_grid_are_entries_where_they_were_run(tmp_path: Path) -> None:
    results = write_results(tmp_path / "results")
    best = results / "table1" / "best.parquet"
    pl.DataFrame(schema={"task": pl.String}).write_parquet(best)
    assert len(read_entries(results)) == 14
    pl.DataFrame(rows("har", {"fedbalancer-S": (2.4, 1.8, 3.0)})).write_parquet(best)
    (found,) = [entry for entry in read_entries(results) if entry.method == "fedbalancer-S"]
    assert (found.ratio, found.link) == (2.4, "table1/table1.html")
    (board, *_) = make_boards(read_entries(results))
    assert "fedbalancer-S" in [row.method for row in board.rows]
