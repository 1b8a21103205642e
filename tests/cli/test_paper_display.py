"""The progress of an item of the paper, over all its runs."""

from __future__ import annotations

import re

import pytest

from fedbalancer.cli import paper_display
from fedbalancer.cli.paper_display import item_display
from fedbalancer.experiments.progress import JobEvent, Progress
from fedbalancer.paper.pool import REUSED


def test_runs_that_go_on_for_longer_take_the_end_away(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s = [0.0]
    monkeypatch.setattr(paper_display.time, "monotonic", lambda: clock_s[0])
    half = Progress(round=3, clock_s=70.0, value=None, share=0.5)
    with item_display("table1", 4) as listen:
        listen("har", JobEvent(("a", 0), "done", why=REUSED))
        for method in ("b", "c", "d"):
            clock_s[0] += 60
            listen("har", JobEvent((method, 0), "done"))
        for method in ("a", "b"):
            listen("har", JobEvent((method, 0), "further", half))
        clock_s[0] += 30
        listen("har", JobEvent(("a", 0), "done"))
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "beyond their budget" in line] == [lines[3]], "why, once, before it goes back"
    told = [
        re.findall(r"(\d) of 4 runs, (\d+:\d\d) left", line)[0] for line in lines if "beyond their budget" not in line
    ]
    assert told == [("2", "2:00"), ("3", "1:00"), ("4", "0:00"), ("3", "0:30")]


def test_runs_that_nobody_knew_of_are_counted_once_they_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    with item_display("table1", 1) as listen:
        listen("har", JobEvent(("a", 0), "done"))
        for seed in (0, 1):
            listen("har", JobEvent(("a[w=5]", seed), "waiting"))
        listen("har", JobEvent(("a[w=5]", 0), "done"))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == ["table1: 1 of 1 runs", "table1: 2 of 3 runs"]
