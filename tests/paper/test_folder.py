"""The folder of an item: tasks of different days together, the same bytes for the same numbers, and an index."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from paper.sample_items import frames

from fedbalancer.core.errors import RunFolderError
from fedbalancer.paper.folder import describe_part, renew_item, write_index, write_item
from fedbalancer.paper.item import Request
from fedbalancer.paper.items.comparisons import FIG5B


def made(folder: Path, task: str, seeds: int = 2) -> None:
    known = describe_part(
        Request(tasks=(task,), seeds=tuple(range(seeds))), f"fedbalancer paper fig5b --tasks {task}", 1.0, []
    )
    write_item(FIG5B, folder, frames(FIG5B.groups, task, seeds), {task: known}, [task])


def test_a_task_replaces_its_own_rows_and_no_others(tmp_path: Path) -> None:
    folder = tmp_path / "fig5b"
    made(folder, "har", 2)
    made(folder, "femnist", 2)
    made(folder, "har", 3)
    scores = pl.read_parquet(folder / "scores.parquet")
    seeds = scores.group_by("task").agg(pl.col("seed").n_unique())
    assert dict(seeds.iter_rows()) == {"har": 3, "femnist": 2}
    text = (folder / "fig5b.md").read_text()
    assert "fedbalancer paper fig5b --tasks har" in text
    assert "fedbalancer paper fig5b --tasks femnist" in text


def test_the_same_numbers_give_the_same_drawings(tmp_path: Path) -> None:
    for name in ("a", "b"):
        made(tmp_path / name, "har")
    for file in ("fig5b.svg", "fig5b.png", "scores.parquet"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert b"<dc:date" not in (tmp_path / "a" / "fig5b.svg").read_bytes()


def test_the_index_has_every_item_and_the_page_the_hand_written_part(tmp_path: Path) -> None:
    made(tmp_path / "fig5b", "har")
    (tmp_path / "fig5b" / "why.md").write_text("Because the data are others.\n")
    made(tmp_path / "fig5b", "har")
    text = write_index(tmp_path).read_text()
    assert (
        "| [fig5b](fig5b/fig5b.md) | Figure 5b: with and without a forward pass in every round | small | har (2) |"
        in text
    )
    assert "Because the data are others." not in text
    assert "fedbalancer paper fig5b --tasks har" in text
    assert "Because the data are others." in (tmp_path / "fig5b" / "fig5b.html").read_text()
    assert (tmp_path / "fig5b" / "why.md").read_text() == "Because the data are others.\n"


def test_the_index_links_the_results_of_the_papers_shape_if_they_are_there(tmp_path: Path) -> None:
    link = "../benchmarks/paper-shape.md"
    assert link not in write_index(tmp_path).read_text()
    (tmp_path / "paper-shape").mkdir()
    assert link in write_index(tmp_path).read_text()


def test_somebody_elses_readme_stays(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    made(tmp_path / "fig5b", "har")
    write_index(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_a_damaged_document_is_told(tmp_path: Path) -> None:
    (tmp_path / "item.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"item\.json"):
        made(tmp_path, "har")


def test_an_item_is_shown_anew_from_its_tables_alone(tmp_path: Path) -> None:
    folder = tmp_path / "fig5b"
    made(folder, "har")
    write_index(tmp_path)
    kept = {file.name: file.read_bytes() for file in folder.iterdir()}
    for file in folder.glob("fig5b.*"):
        file.unlink()
    renew_item(folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == kept
    (folder / "why.md").write_text("Because.\n")
    renew_item(folder)
    assert "Because." in (folder / "fig5b.html").read_text()
    assert "Because." in (folder / "fig5b.md").read_text()


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [("item.json", b'{"item": "fig99", "parts": {}}', "fig99"), ("scores.parquet", b"x", r"scores\.parquet")],
)
def test_what_cannot_be_shown_anew_is_told(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    made(tmp_path, "har")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RunFolderError, match=told):
        renew_item(tmp_path)


@pytest.mark.parametrize("name", ["scores", "methods", "curves"])
def test_a_table_that_is_not_there_or_lacks_a_column_is_told(tmp_path: Path, name: str) -> None:
    made(tmp_path, "har")
    file = tmp_path / f"{name}.parquet"
    pl.read_parquet(file).drop("method").write_parquet(file)
    with pytest.raises(RunFolderError, match=r"no column .*method.*paper fig5b"):
        renew_item(tmp_path)
    file.unlink()
    with pytest.raises(RunFolderError, match=rf"{name}\.parquet.*paper fig5b"):
        renew_item(tmp_path)
