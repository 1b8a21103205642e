"""Tables of ratios that are made beside the paper's items: on a board of their own, where they can be compared."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from reporting.results_folder import FEDAVG, NASTY, Ratio, ratios, write_canter, write_ratios, write_results

from fedbalancer.core.errors import RunFolderError
from fedbalancer.reporting.leaderboard import Board, leaderboard_markdown, make_boards, write_leaderboard
from fedbalancer.reporting.leaderboard_entries import Entry, read_entries

ROOT = Path(__file__).parents[2]
CANTER: dict[str, Ratio] = {**FEDAVG, "canter": (4.2, 3.6, 4.9)}


def cells(board: Board) -> dict[tuple[str, str], Entry]:
    return {(cell.task, cell.method): cell for row in board.rows for cell in row.cells if cell is not None}


def test_canter_and_the_peers_stand_on_a_board_of_their_own_seeds(tmp_path: Path) -> None:
    main, apart, lower = make_boards(read_entries(write_canter(write_results(tmp_path))))
    assert [board.series for board in (main, lower)] == ["", ""]
    assert apart.title.startswith("seeds 10 to 19, not used to develop canter: scale small, fair rule, target 100%")
    assert apart.tasks == ("har", "reddit")
    assert {"canter", "fedbuff", "fedbalancer", *FEDAVG} <= {row.method for row in apart.rows}
    assert [row.method for row in apart.rows if row.is_ours] == ["canter"]
    canter = cells(apart)["har", "canter"]
    assert (canter.ratio, canter.ratio_low, canter.ratio_high, canter.verdict) == (4.2, 3.6, 4.9, "faster")
    assert canter.link == "canter/held-out.md"


def test_held_out_seeds_never_stand_is_on_board_of_table_1(tmp_path: Path) -> None:
    alone = make_boards(read_entries(write_results(tmp_path / "alone")))
    beside = make_boards(read_entries(write_canter(write_results(tmp_path / "beside"))))
    assert [board for board in beside if not board.series] == alone
    assert all("/" in cell.item for board in beside if board.series for cell in cells(board).values())


def test_held_out_counts_before_peers_and_other_halves_which_stay_in_the_list(tmp_path: Path) -> None:
    found = read_entries(write_canter(tmp_path))
    (board,) = make_boards(found)
    on_it = cells(board)
    assert (on_it["har", "canter"].item, on_it["har", "canter"].seeds) == ("canter/held-out", 10)
    assert (on_it["har", "fedbuff"].item, on_it["har", "fedbuff"].seeds) == ("canter/peers", 5)
    assert (on_it["reddit", "canter"].item, on_it["reddit", "canter"].reached) == ("canter/held-out", 4)
    listed = {(e.item, e.group) for e in found if (e.task, e.method) == ("reddit", "canter")}
    assert listed == {("canter/held-out", "seeds 10 to 14"), ("canter/seeds-15-to-19/held-out", "seeds 15 to 19")}


def test_only_ratios_over_the_best_fedavg_are_entries(tmp_path: Path) -> None:
    write_ratios(tmp_path / "canter" / "held-out.parquet", ratios("har", CANTER))
    found = read_entries(tmp_path)
    assert [entry.method for entry in found] == list(CANTER)
    assert found[-1].ratio == 4.2


@pytest.mark.parametrize(
    ("name", "methods", "changes", "group"),
    [
        ("held-out", CANTER, {"comparison": "har, a fifth of the labels wrong"}, "har, a fifth of the labels wrong"),
        ("parts", CANTER, {}, "seeds 0 to 9"),  # seeds that it was made with
        ("power", {"fedavg+1t": (1.0, 1.0, 1.0), "canter": (4.2, 3.6, 4.9)}, {}, "seeds 10 to 19"),  # a lower reference
        ("held-out", {**CANTER, "fedavg[deadline=.5T]": (1.0, 1.0, 1.0)}, {}, "seeds 10 to 19"),  # or a higher one
        ("elsewhere", CANTER, {}, ""),  # on seeds of which nothing is known
    ],
)
def test_what_is_not_comparable_is_in_the_list_only(
    tmp_path: Path, name: str, methods: dict[str, Ratio], changes: dict[str, str], group: str
) -> None:
    write_ratios(tmp_path / "canter" / f"{name}.parquet", ratios("har", methods, **changes))
    written = write_leaderboard(tmp_path)
    assert written.boards == ()
    assert {(entry.task, entry.group) for entry in written.entries} == {("har", group)}
    assert f"<small>{group}</small>" in written.page.read_text() or not group


def test_an_interval_of_two_seeds_is_not_shown(tmp_path: Path) -> None:
    write_ratios(tmp_path / "canter" / "peers.parquet", ratios("har", CANTER, seeds=2, reached=2))
    assert {(entry.ratio_low, entry.verdict) for entry in read_entries(tmp_path)} == {(None, "open")}


def test_tables_of_another_shape_and_those_of_items_and_users_are_left_aside(tmp_path: Path) -> None:
    before = read_entries(write_results(tmp_path))
    table = pl.DataFrame(ratios("har", CANTER))
    for place in ("canter/forecast", "fig4/ddle"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        table.drop("over").write_parquet(tmp_path / f"{place}.parquet")
    table.write_parquet(tmp_path / "table1" / "ratios.parquet")
    (tmp_path / "own" / "ann").mkdir(parents=True)
    table.write_parquet(tmp_path / "own" / "ann" / "ratios.parquet")
    assert read_entries(tmp_path) == before


def test_without_a_page_beside_it_a_table_leads_to_its_folder(tmp_path: Path) -> None:
    write_ratios(tmp_path / "a [b]" / "x#y.parquet", ratios("har", CANTER), page=False)
    assert {entry.link for entry in read_entries(tmp_path)} == {"a%20%5Bb%5D"}


def test_a_damaged_table_is_told_by_its_name(tmp_path: Path) -> None:
    file = write_ratios(tmp_path / "canter" / "held-out.parquet", ratios("har", CANTER))
    whole = file.read_bytes()
    for damaged in (b"", b"not parquet", whole[: len(whole) // 2]):
        file.write_bytes(damaged)
        with pytest.raises(RunFolderError, match=r"held-out\.parquet cannot be read"):
            write_leaderboard(tmp_path)
    write_ratios(file, ratios("har", CANTER, ratio="fast"))
    with pytest.raises(RunFolderError, match=r"held-out\.parquet cannot be read"):
        write_leaderboard(tmp_path)
    for empty in ({"method": None}, {"target_share": float("nan")}):
        write_ratios(file, ratios("har", CANTER, **empty))
        with pytest.raises(RunFolderError, match=r"held-out\.parquet is damaged"):
            write_leaderboard(tmp_path)


def test_page_and_markdown_have_the_board_and_hostile_names_stay_text(tmp_path: Path) -> None:
    write_ratios(tmp_path / "canter" / "trials.parquet", ratios("har", CANTER, comparison=NASTY))
    written = write_leaderboard(write_canter(tmp_path))
    page, text = written.page.read_text(), written.text.read_text()
    assert 'canter <span class="ours">ours</span>' in page
    assert "<small>4 of 5 seeds</small>" in page
    assert 'href="canter/held-out.md"' in page
    assert "## seeds 10 to 19, not used to develop canter: scale small" in text
    assert "| canter (ours) | project | [4.20 (3.60 to 4.90) ▲](canter/held-out.md), 0.900, 10 of 10 |" in text
    assert "and so do the references" in page
    assert "and so do the references" in text
    assert "<img" not in page + text


def test_the_results_of_this_repository_have_canter_on_all_five_tasks() -> None:
    first = next(board for board in make_boards(read_entries(ROOT / "docs" / "results")) if board.series)
    assert (first.scale, first.rule, first.target_share) == ("small", "fair", 1.0)
    canter = {task: cell for (task, method), cell in cells(first).items() if method == "canter"}
    assert {"har", "femnist", "celeba", "shakespeare", "reddit"} <= canter.keys()
    assert {cell.verdict for cell in canter.values()} == {"faster"}
    assert {"fedbuff", "timelyfl", "refl", "oort", "fedavg+1t+fednova"} <= {row.method for row in first.rows}
    assert all((ROOT / "docs" / "results" / cell.link).is_file() for cell in cells(first).values())


def test_the_committed_leaderboard_is_what_the_results_say_now() -> None:
    folder = ROOT / "docs" / "results"
    text = (folder / "leaderboard.md").read_text(encoding="utf-8")
    assert text == leaderboard_markdown(make_boards(read_entries(folder))), "fedbalancer leaderboard docs/results"
