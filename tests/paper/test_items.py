"""Every item shows what its tables hold, and writes all its files; names stay text."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from paper.sample_items import frames

from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.methods.table import method
from fedbalancer.paper.folder import describe_part, write_item
from fedbalancer.paper.item import Item, Request
from fedbalancer.paper.items import ITEMS, load_item, table1, table3, testbed
from fedbalancer.paper.items.comparisons import FIG2, FIG5B, FIG6, FIG7, ComparisonItem
from fedbalancer.paper.items.fig5a import FIG5A
from fedbalancer.paper.items.table1 import best_rows, find_over, grid_methods, speedups_over
from fedbalancer.paper.scores import Group
from fedbalancer.reporting import score

COMPARED = {item.name: item for item in (FIG2, FIG5A, FIG5B, FIG6, FIG7)}
HOSTILE = "<script>alert('x')</script>|$x_1$"


def whole(task: str = "har", **options: Any) -> dict[str, pl.DataFrame]:
    """The values of table1, without runs."""
    names = (*table1.METHODS, *(name for name in grid_methods() if name not in table1.METHODS))
    made = frames([Group("all", names)], task, **options)
    chosen, settings = best_rows(made["scores"])
    curves = made["curves"].filter(pl.col("method").is_in(table1.METHODS))
    over = pl.DataFrame({
        "task": [task], "kind": ["prox"], "ratio": [1.5], "ratio_low": [1.2], "ratio_high": [1.9], "ratio_bound": [""],
    })  # fmt: skip
    return {**made, "curves": curves, "best": chosen, "chosen": settings, "over": over}


def written(found: Item, tables: dict[str, pl.DataFrame], folder: Path, task: str = "har") -> Path:
    request = Request(tasks=(task,), scale=found.scale)
    known = describe_part(request, f"fedbalancer paper {found.name} --tasks {task}", 1.0, ["a note"])
    return write_item(found, folder, tables, {task: known}, [task]).folder


@pytest.mark.parametrize("name", ITEMS)
def test_every_item_is_there_under_its_name(name: str) -> None:
    assert load_item(name).name == name
    assert load_item(name).tasks


def test_an_unknown_item_gets_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match="table1"):
        load_item("table11")


@pytest.mark.parametrize("found", [*COMPARED.values()], ids=list(COMPARED))
def test_every_method_of_an_item_can_be_run(found: ComparisonItem) -> None:
    for name in found.methods:
        assert method(name).name == name, "it stands in the tables as it is spelt here"


def test_every_method_of_the_grid_has_its_one_name() -> None:
    assert all(method(name).name == name for name in grid_methods())


@pytest.mark.parametrize("found", [*COMPARED.values()], ids=list(COMPARED))
def test_an_item_writes_all_its_files(found: ComparisonItem, tmp_path: Path) -> None:
    folder = written(found, frames(found.groups, "femnist"), tmp_path / found.name, "femnist")
    for ending in ("md", "html", "png", "svg"):
        assert (folder / f"{found.name}.{ending}").stat().st_size > 0
    assert pl.read_parquet(folder / "scores.parquet")["seed"].n_unique() == 3
    document = json.loads((folder / "item.json").read_text())
    assert document["findings"]
    assert document["parts"]["femnist"]["command"].startswith("fedbalancer paper")


def test_figures_that_the_paper_has_get_a_verdict() -> None:
    for name, task in (("fig2", "femnist"), ("fig5a", "femnist"), ("fig7", "femnist")):
        found = COMPARED[name].present(frames(COMPARED[name].groups, task)).findings
        assert any(finding.verdict.word in ("within", "better", "worse") for finding in found), name


def test_table1_shows_all_ten_rows_and_the_honest_ones(tmp_path: Path) -> None:
    shown = table1.TABLE1.present(whole())
    rows = [row[0] for row in shown.tables[0].rows]
    assert rows[:8] == list(table1.METHODS)
    assert rows[8:] == [
        "fedbalancer-A", "fedbalancer-A (cross-validated)", "fedbalancer-S", "fedbalancer-S (cross-validated)",
    ]  # fmt: skip
    assert any("over the best prox" in finding.what for finding in shown.findings)
    written(table1.TABLE1, whole(), tmp_path)


def test_table1_says_what_was_left_out() -> None:
    made = whole()
    some = {
        name: table.filter(pl.col("method").is_in(table1.METHODS)) for name, table in made.items() if "method" in table
    }
    none = {name: made[name].clear() for name in ("best", "chosen")}
    shown = table1.TABLE1.present({**made, **some, **none})
    assert any("FedBalancer-A and -S were not measured on har" in note for note in shown.notes)


def test_the_paper_rule_needs_its_own_folder() -> None:
    from fedbalancer.paper.folder import item_folder

    request = Request(tasks=("har",))
    folders = [
        item_folder(Path("o"), table1.TABLE1, asked).name
        for asked in (request, replace(request, rule="paper"), replace(request, scale="paper"))
    ]
    assert folders == ["table1", "table1-by-paper-rule", "table1-paper"]


def test_table3_averages_over_the_other_settings(tmp_path: Path) -> None:
    scores = whole()["scores"]
    found = table3.sensitivity(scores)
    assert found.height == 10
    assert set(found["runs"]) == {36 // 2 * 3, 36 // 3 * 3}
    names = [name for name, settings in grid_methods().items() if settings["w"] == 5]
    held = scores.filter(pl.col("method").is_in(names) & (pl.col("target_share") == 1.0))
    row = found.row(by_predicate=(pl.col("parameter") == "w") & (pl.col("value") == 5), named=True)
    assert row["accuracy"] == pytest.approx(held["accuracy"].mean())
    written(table3.TABLE3, {"sensitivity": found, "scores": scores}, tmp_path)
    with pytest.raises(BadSetting, match="--no-grid"):
        table3.TABLE3.check(Request(tasks=("har",), grid=False))


def test_table5_stands_beside_the_papers(tmp_path: Path) -> None:
    made = frames([Group(testbed.NAME, testbed.METHODS)], rule="paper")
    lags = pl.DataFrame({"task": ["har"], "method": ["fedavg+1t"], "seed": [0], "late_share": [0.25]})
    shown = testbed.TABLE5.present({**made, "lags": lags})
    assert len(shown.findings) == 16
    assert all(finding.paper is not None for finding in shown.findings)
    written(testbed.TABLE5, {**made, "lags": lags}, tmp_path)


def test_names_stay_text(tmp_path: Path) -> None:
    group = Group("parts", ("fedavg+1t", HOSTILE))
    hostile = replace(FIG6, groups=(group,), notes=(HOSTILE,))
    folder = written(hostile, frames([group], HOSTILE), tmp_path / "x", HOSTILE)
    page = (folder / "fig6.html").read_text()
    assert "<script>alert" not in page
    assert "alert('x')</script>" not in page
    assert "&lt;script&gt;" in page
    assert "<script" not in (folder / "fig6.md").read_text()
    assert "<script" not in (folder / "fig6.svg").read_text()


def test_speedups_over_the_best_of_each_kind() -> None:
    from paper.sample_items import BUDGET_S, curve

    steps = dict.fromkeys(table1.METHODS, 50.0) | {"prox+2t": 40.0, "fedbalancer": 20.0}
    tops = dict.fromkeys(table1.METHODS, 0.8) | {"prox+2t": 0.9}
    curves = [curve(name, seed, step, tops[name]) for name, step in steps.items() for seed in (0, 1)]
    found = speedups_over(score(curves, {0: BUDGET_S, 1: BUDGET_S}, rule="paper", task="har"))
    assert dict(zip(found["kind"], found["ratio"], strict=True)) == pytest.approx(
        {"fedavg": 2.5, "prox": 2.0, "sampleselection": 2.5}, rel=0.2
    )


def test_a_speedup_over_one_that_arrives_as_little_is_unknown_and_not_unmeasured() -> None:
    from paper.sample_items import BUDGET_S, curve

    tops = dict.fromkeys(table1.METHODS, 0.8) | {"prox+1t": 0.5, "prox+2t": 0.5, "fedbalancer": 0.6}
    curves = [curve(name, seed, 50.0, top) for name, top in tops.items() for seed in (0, 1)]
    found = find_over(speedups_over(score(curves, {0: BUDGET_S, 1: BUDGET_S}, task="har")))
    assert [(each.ours_text, each.verdict.word) for each in found] == [
        ("< 0.75", "worse"), ("?", "unknown"), ("< 0.75", "worse"),
    ]  # fmt: skip
