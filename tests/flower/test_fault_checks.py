"""The checks of the fault table see what they are there to see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower.faults.checks import Evidence, Verdict, verdict_of
from flower.faults.page import page

REPORTS = {"good0": (10, [1.0, 2.0]), "good1": (30, [5.0, 4.0]), "good2": (20, [0.0, 3.0]), "bad": (99, [50.0, 50.0])}
MEAN = [(10 * 1 + 30 * 5) / 60, (10 * 2 + 30 * 4 + 20 * 3) / 60]


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def judge(
    folder: Path, model: list[float], *, seconds: float = 12.3, status: str = "done", event: str = "invalid",
    lost: str = "", fault: str = "nan",
) -> Verdict:  # fmt: skip
    """The verdict on a run of one round with a client that misbehaved: by default it sent NaN."""
    run = folder / "run"
    for made in (run, folder / "journal"):
        made.mkdir()
    outcomes = {client: "completed" for client in REPORTS if client not in ("bad", lost)} | {"bad": "invalid"}
    outcomes |= {lost: "silent"} if lost else {}
    rows = {"round": [1] * len(outcomes), "client": list(outcomes), "outcome": list(outcomes.values())}
    pl.DataFrame(rows).write_parquet(run / "clients.parquet")
    pl.DataFrame({"round": [1]}).write_parquet(run / "rounds.parquet")
    (run / "manifest.json").write_text(json.dumps({"status": status, "why": None}))
    write(run / "log.jsonl", [
        {"event": "round", "round": 1, "deadline_s": 12.0}, {"event": event, "client": "bad", "round": 1, "why": "NaN"},
        {"event": "round closed", "round": 1, "seconds": seconds},
    ])  # fmt: skip
    write(folder / "models.jsonl", [{"round": 0, "at_s": 0.0, "model": [0.0, 0.0]},
                                    {"round": 1, "at_s": 20.0, "model": model}])  # fmt: skip
    for client, (weight, values) in REPORTS.items():
        line = {"what": "sent", "client": client, "run": 1, "round": 1, "fault": "good", "at_s": 9.0}
        write(folder / "journal" / f"{client}.jsonl", [{**line, "weight": weight, "update": values}])
    evidence = Evidence(run, folder / "journal", folder / "models.jsonl")
    return verdict_of(evidence, 1, fault, "bad", 1)


def test_a_fault_that_harmed_nobody_is_survived(tmp_path: Path) -> None:
    verdict = judge(tmp_path, MEAN)
    assert verdict.wrong == ()
    assert verdict.named == "invalid: NaN"
    assert verdict.overhead_s == pytest.approx(0.3)
    assert "| reply: a model of NaN | 1 | 1 | 0.30 | invalid: NaN |" in page([verdict])


TWICE = [(20 * 1 + 30 * 5) / 70, (20 * 2 + 30 * 4 + 20 * 3) / 70]
LIAR = [(60 * MEAN[0] + 99 * 50) / 159, (60 * MEAN[1] + 99 * 50) / 159]


@pytest.mark.parametrize(
    ("model", "more", "wrong"),
    [
        (TWICE, {}, "each counted once"),
        (LIAR, {}, "each counted once"),
        ([float("nan")] * 2, {}, "not finite"),
        (MEAN, {"seconds": 13.2}, "more than its deadline"),
        (MEAN, {"status": "failed"}, "the run is failed"),
        (MEAN, {"event": "elsewhere"}, "no 'invalid' names bad"),
        (MEAN, {"event": "stopped at the deadline"}, "no 'invalid' names bad"),
        (MEAN, {"event": "stopped at the deadline", "fault": "node-during"}, "no 'missing' names bad"),
        ([10 * 1 / 30, (10 * 2 + 20 * 3) / 30], {"lost": "good1"}, "the report of good1 is lost"),
    ],
)
def test_harm_is_told(model: list[float], more: dict[str, Any], wrong: str, tmp_path: Path) -> None:
    verdict = judge(tmp_path, model, **more)
    assert any(wrong in text for text in verdict.wrong), verdict.wrong


def test_a_client_killed_after_it_said_that_its_time_was_up_is_named_by_that(tmp_path: Path) -> None:
    assert judge(tmp_path, MEAN, event="stopped at the deadline", fault="node-after").wrong == ()
