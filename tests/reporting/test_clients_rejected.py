"""The page names whose reports were not believed, and why."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from experiments import tinytask

import fedbalancer as fb
from fedbalancer.reporting.clients import count_rejected, list_rejected
from fedbalancer.reporting.page import page_html
from fedbalancer.reporting.results import load


def test_the_worst_clients_come_first_each_with_its_first_fault() -> None:
    rows = [(1, "b", ""), (2, "b", "x 1"), (3, "a", "y 2"), (4, "b", "x 3"), (5, "c", "")]
    clients = pl.DataFrame(rows, schema=["round", "client", "why"], orient="row").lazy()
    assert count_rejected(clients).collect().rows() == [("b", 2, 2, "x 1"), ("a", 1, 3, "y 2")]


def test_a_page_names_twenty_and_counts_the_others() -> None:
    found = pl.DataFrame(
        [(f"c{n:02}", 2, 1, "x") for n in range(23)], schema=["client", "reports", "r", "w"], orient="row"
    )
    cells = list(list_rejected("m", 0, found))
    assert cells[0] == ("m", "0", "c00", "2", "1", "x")
    assert cells[-1] == ("m", "0", "3 more", "6", "", "")


def test_a_run_under_attack_names_the_fault_in_log_table_and_page(tmp_path: Path) -> None:
    """A client that claims 1e40 is left out and suspended, and the run continues to its end."""
    settings = {"attacks": ["metadata-liar(factor=1e40, field='high'):2"]}
    result = fb.run(tinytask.load(), "fedbalancer", rounds=6, settings=settings, out=tmp_path / "run")
    assert result.status == "done"
    wrong = result.clients.filter(pl.col("why") != "")
    assert wrong.height > 0
    assert set(wrong["outcome"]) == {"invalid"}
    assert wrong["why"].str.contains(r"loss_high .*e\+\d+, which must be at most").all()
    log = (tmp_path / "run" / "log.jsonl").read_text()
    assert log.count('"report left out"') == wrong.height
    page = page_html(load(tmp_path / "run"), None)
    assert "Rejected reports" in page
    assert f"<td>{wrong['client'][0]}</td>" in page
    honest = fb.run(tinytask.load(), "fedbalancer", rounds=2, out=tmp_path / "honest")
    assert set(honest.clients["why"]) == {""}
    assert "Rejected reports" not in page_html(load(tmp_path / "honest"), None)
