"""Table 5: our figures beside the paper's."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl

from fedbalancer.methods import BASES
from fedbalancer.report import RunCurve, score
from fedbalancer.testbed.table5 import METHODS, PAPER, write_table


def curve(method: str, step_s: float) -> RunCurve:
    clock = [step_s * n for n in range(1, 5)]
    frame = pl.DataFrame(
        {"round": [1, 2, 3, 4], "start_s": [0.0, *clock[:-1]], "clock_s": clock, "accuracy": [0.2, 0.4, 0.6, 0.8]}
    )
    return RunCurve(method, 0, frame)


def test_every_method_of_the_table_can_be_run() -> None:
    assert set(METHODS) == set(PAPER) <= set(BASES)


def test_ours_stands_beside_the_papers(tmp_path: Path) -> None:
    comparison = score(
        [curve("fedavg+1t", 10.0), curve("fedbalancer", 5.0), curve("oort", 5.0)], {0: 40.0}, rule="paper"
    )
    file = write_table(comparison, tmp_path)
    lines = file.read_text().splitlines()
    assert "| fedbalancer | 2.00 | 1.33 ± 0.08 | 0.800 | 0.885 ± 0.017 |" in lines
    assert "| oort | 2.00 | – | 0.800 | – |" in lines
    document = json.loads((tmp_path / "table5.json").read_text())
    assert document["fedavg+1t"]["paper"]["accuracy"] == 0.852
    assert document["fedbalancer"]["speedup"] == 2.0
    assert document["oort"]["paper"] is None
