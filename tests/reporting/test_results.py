"""A report reads what is there, and says what is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedbalancer.core.errors import RunFolderError
from fedbalancer.reporting.results import load, load_comparison, load_run


def test_a_comparison_has_every_promised_run_in_order(comparison_folder: Path) -> None:
    results = load(comparison_folder)
    assert len(results.runs) == len(results.methods) * len(results.seeds) == 15
    assert (results.task, results.variant, results.scale, results.rounds) == ("har", "synthetic", "small", 50)
    assert results.budgets_s == {0: 10_000.0, 1: 10_300.0, 2: 10_600.0}
    assert not results.single


def test_a_failed_run_keeps_its_rows_status_and_reason(comparison_folder: Path) -> None:
    run = load_run(comparison_folder / "prox+1t" / "seed-2")
    assert (run.curve.method, run.curve.seed, run.curve.status) == ("prox+1t", 2, "failed")
    assert run.rounds.height == 12
    assert "loss is nan" in run.why
    assert [used.curve.seed for used in load(comparison_folder).of("prox+1t")] == [0, 1]


def test_a_missing_run_is_missing_and_a_damaged_one_damaged(comparison_folder: Path) -> None:
    (comparison_folder / "oort" / "seed-0" / "manifest.json").unlink()
    (comparison_folder / "oort" / "seed-1" / "evals.parquet").write_bytes(b"not parquet")
    (comparison_folder / "oort" / "seed-2" / "manifest.json").write_text("{")
    runs = [run for run in load(comparison_folder).runs if run.curve.method == "oort"]
    assert [run.curve.status for run in runs] == ["missing", "damaged", "damaged"]
    assert "evals.parquet" in runs[1].why


def test_a_run_that_has_only_begun_has_no_rows(comparison_folder: Path) -> None:
    folder = comparison_folder / "oort" / "seed-0"
    for name in ("evals", "rounds", "clients"):
        (folder / f"{name}.parquet").unlink()
    run = load_run(folder)
    assert run.rounds.height == run.curve.evals.height == run.outcomes.height == 0
    assert run.curve.last_s == 0.0


def test_client_outcomes_are_counted(run_folder: Path) -> None:
    run = load_run(run_folder)
    assert run.outcomes["clients"].sum() == run.rounds["selected"].sum()
    assert set(run.outcomes["outcome"]) <= {"completed", "train", "upload"}


def test_a_single_run_is_a_comparison_of_one(run_folder: Path) -> None:
    results = load(run_folder)
    assert results.single
    assert (results.methods, results.seeds) == (("fedbalancer",), (3,))


def test_curves_show_unfinished_runs_only_where_there_are_no_others(
    tmp_path: Path, make_comparison: Callable[..., Path]
) -> None:
    folder = make_comparison(tmp_path / "c", methods=("fedavg+1t", "prox+1t"), seeds=(0, 1))
    assert [run.curve.seed for run in load(folder).of("prox+1t")] == [0]
    manifest = folder / "prox+1t" / "seed-0" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "status": "failed"}))
    content = json.loads((folder / "comparison.json").read_text())
    (folder / "comparison.json").write_text(json.dumps({**content, "budgets_s": {}}))
    assert [run.curve.seed for run in load(folder).of("prox+1t")] == [0, 1]


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"methods": ["a"], "seeds": ["x"]}'])
def test_a_damaged_comparison_is_an_error_that_names_the_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "comparison.json").write_text(content)
    with pytest.raises(RunFolderError, match=r"comparison\.json"):
        load_comparison(tmp_path)


def test_any_other_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"neither comparison\.json nor manifest\.json"):
        load(tmp_path)
