"""A small benchmark from its trials to its pages: continued, recorded and scored."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import polars as pl
import pytest

from fedbalancer.core.errors import BadSetting, RunFolderError, UnknownName
from fedbalancer.experiments.benchmark.results import collect, restore
from fedbalancer.experiments.benchmark.run import gifted, run_benchmark, with_gifts
from fedbalancer.experiments.benchmark.suite import FEDAVG, Cell, Suite
from fedbalancer.experiments.benchmark.tuning import is_tuned, read_tuned, trial_methods
from fedbalancer.experiments.benchmark.verify import choose_runs, verify
from fedbalancer.reporting.benchmark import load_board
from fedbalancer.reporting.benchmark_page import markdown, write_pages

TINY = {"rounds": 3, "clients_per_round": 3, "epochs": 1}
SUITE = Suite(
    name="tiny-1", cells=(Cell(name="tiny", task="synthetic", title="a few users", users=6, settings=TINY),),
    trials=2, tuning_seeds=(100,), seeds=(200,), extend=1.5,
)  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished benchmark, which was stopped once."""
    out = tmp_path_factory.mktemp("benchmark")
    lines: list[str] = []
    options = {"methods": ["canter"], "jobs": 1, "results": out / "results", "say": lines.append}
    assert not run_benchmark(SUITE, out, stopped=lambda: len(lines) >= 3, **options)
    before = len(lines)
    assert run_benchmark(SUITE, out, **options)
    assert 3 <= before < len(lines)
    assert run_benchmark(SUITE, out, **options)
    return out


def test_every_method_has_the_same_number_of_trials_and_its_defaults_first(done: Path) -> None:
    tuned = read_tuned(done / "tiny" / "tuned.json")
    assert tuned.keys() == {*FEDAVG, "canter"}
    for method, each in tuned.items():
        assert [trial["method"] for trial in each.trials] == list(trial_methods(method, 2, 0.01))
        assert each.trials[0]["method"] == method
        assert each.targets.keys() == {100}
        best = min((trial for trial in each.trials if trial["value"] is not None), key=lambda trial: trial["value"])
        assert each.chosen == best["method"]


def test_a_row_has_its_curve_its_costs_and_the_checksums_of_its_files(done: Path) -> None:
    runs = pl.read_parquet(done / "results" / "runs.parquet")
    assert set(runs["seed"]) == {200}
    assert runs["sha256_model"].null_count() == 0
    assert runs["data"].n_unique() == runs["code"].n_unique() == 1
    for row in runs.iter_rows(named=True):
        assert len(row["at_s"]) == len(row["level"]) == len(row["device_s"]) >= 50
        assert row["device_s"] == sorted(row["device_s"])
        assert 0 <= row["final"] <= 1


def test_the_target_is_the_final_accuracy_of_the_best_tuned_fedavg(done: Path) -> None:
    board = load_board(done / "results")
    entries = [entry for entry in board.entries if entry.column == "tuned" and entry.method in FEDAVG]
    best = max(entries, key=lambda entry: entry.rows[200]["final"])
    assert best.over[1.0].mean == 1.0
    assert best.reached(1.0) == 1
    assert {entry.reference[1.0][200] for entry in board.entries} == {best.arrivals[1.0][200]}
    for entry in board.entries:  # an unreached target was pursued up to the last budget
        if not entry.reached(1.0):
            assert entry.rows[200]["end_s"] >= 1.5 * entry.rows[200]["budget_s"] * 0.99


def test_pages_are_written_and_name_the_number_of_trials(done: Path) -> None:
    write_pages(done / "results")
    text = (done / "results" / "README.md").read_text()
    assert "2 trials per method on 1 tuning seed" in text
    assert "| tiny | " in text
    page = (done / "results" / "benchmark.html").read_text()
    assert "<svg" in page
    assert "](" not in page, "Markdown in a page of HTML"


def test_rows_of_other_runs_stay_in_the_results(done: Path, tmp_path: Path) -> None:
    collect(SUITE, done, tmp_path)
    mine = pl.read_parquet(tmp_path / "runs.parquet").height
    collect(SUITE, done, tmp_path, owner="Ann")
    assert pl.read_parquet(tmp_path / "runs.parquet").height == 2 * mine
    board = load_board(tmp_path)
    assert board.methods == (*FEDAVG, "canter (Ann)", "canter"), "only the submitted method of an owner is shown"
    theirs, ours = board.find("tiny", "canter (Ann)"), board.find("tiny", "canter")
    assert theirs is not None
    assert ours is not None
    assert theirs.over == ours.over
    assert not theirs.is_ours
    collect(SUITE, done, tmp_path)
    assert pl.read_parquet(tmp_path / "runs.parquet").height == 2 * mine


def test_other_seeds_more_trials_or_other_targets_need_new_trials(done: Path) -> None:
    tuned = read_tuned(done / "tiny" / "tuned.json")
    assert is_tuned(SUITE, tuned, "canter")
    assert not is_tuned(SUITE, tuned, "oort")
    assert not is_tuned(replace(SUITE, trials=3), tuned, "canter")
    assert not is_tuned(replace(SUITE, tuning_seeds=(101,)), tuned, "canter")
    higher = {**tuned, "fedavg+1t": replace(tuned["fedavg+1t"], targets={100: 0.99})}
    assert not is_tuned(SUITE, higher, "canter")


def test_another_computer_continues_from_the_results_alone(done: Path, tmp_path: Path) -> None:
    results = copytree(done / "results", tmp_path / "results")
    before = {name: pl.read_parquet(results / f"{name}.parquet") for name in ("runs", "trials")}
    lines: list[str] = []
    assert run_benchmark(SUITE, tmp_path / "runs", methods=["canter"], jobs=1, results=results, say=lines.append)
    assert not lines
    for name, table in before.items():
        assert pl.read_parquet(results / f"{name}.parquet").equals(table)
    assert run_benchmark(SUITE, tmp_path / "runs", methods=["oort"], jobs=1, results=results, say=lines.append)
    assert lines
    assert all("oort" in line for line in lines)
    methods = set(pl.read_parquet(results / "trials.parquet")["method"])
    assert methods == {*FEDAVG, "canter", "oort"}


def test_results_of_other_data_are_not_continued(done: Path, tmp_path: Path) -> None:
    results = copytree(done / "results", tmp_path / "results")
    for name in ("runs", "trials"):
        table = pl.read_parquet(results / f"{name}.parquet").with_columns(data=pl.lit("0" * 64))
        table.write_parquet(results / f"{name}.parquet")
    restore(SUITE.cells[0], SUITE, results, tmp_path / "tiny")
    assert not (tmp_path / "tiny").exists()


def test_a_run_that_ended_at_a_lower_target_runs_again(done: Path) -> None:
    file = next(
        each
        for each in sorted(done.glob("tiny/scores/canter*/seed-200.json"))
        if json.loads(each.read_text())["end_s"] < 1.4 * json.loads(each.read_text())["budget_s"]
    )
    row = json.loads(file.read_text())
    file.write_text(json.dumps(row | {"level": [0.0 for _ in row["level"]]}))  # as if it had held nothing
    assert run_benchmark(SUITE, done, methods=["canter"], jobs=1)
    assert json.loads(file.read_text()) == row


def test_methods_without_a_space_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="has no search space"):
        run_benchmark(SUITE, tmp_path, methods=["fedavg[deadline=.5T]"])
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def untuned(done: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the finished benchmark, continued on another computer with two methods that are not tuned."""
    folder = tmp_path_factory.mktemp("untuned")
    results = copytree(done / "results", folder / "results")
    lines: list[str] = []
    options = {"jobs": 1, "results": results, "say": lines.append}
    names = ["canter[ deadline=2.0T, p=.8 ]", "canter-samples", "canter-samples"]
    assert run_benchmark(SUITE, folder / "runs", methods=["fedavg+1t"], untuned=names, **options)
    assert lines[0].startswith("1 of 2, tiny, canter"), "only the two methods run, and both are counted"
    assert not any("tuning" in line or "fedavg" in line for line in lines)
    before = len(lines)
    assert run_benchmark(SUITE, folder / "runs", methods=[], **options)
    assert len(lines) == before
    return results


def test_methods_without_tuning_are_scored_against_the_same_target(done: Path, untuned: Path) -> None:
    board, before = load_board(untuned), load_board(done / "results")
    entries = [entry for entry in board.entries if entry.column == "untuned"]
    assert [entry.label for entry in entries] == ["canter-samples", "canter[p=.8,deadline=2T]"]
    for entry in entries:
        assert entry.rows.keys() == {200}
        assert entry.reference == next(iter(before.entries)).reference
    assert len(board.entries) == len(before.entries) + 2


def test_methods_without_tuning_are_no_peers_and_in_no_profile(done: Path, untuned: Path) -> None:
    board, before = load_board(untuned), load_board(done / "results")
    assert board.methods == before.methods
    assert board.profile(1.0) == before.profile(1.0)
    ours, theirs = board.best_peer("tiny", 0.8), before.best_peer("tiny", 0.8)
    assert ours is not None
    assert theirs is not None
    assert ours.name == theirs.name


def test_the_page_has_a_section_of_methods_without_tuning(untuned: Path) -> None:
    text = markdown(write_pages(untuned))
    section = text.partition("## Not tuned")[2].partition("## Parts of canter")[0]
    for row in ("| `canter` default | 1 | ", "| `canter-samples` | 1 | ", "| `canter[p=.8,deadline=2T]` | 1 | "):
        assert row in section
    assert "--methods fedavg+1t --untuned 'canter-samples,canter[p=.8,deadline=2T]' --results" in text
    assert "<td>untuned</td>" in (untuned / "benchmark.html").read_text()


def test_results_keep_the_names_of_methods_without_tuning(done: Path, untuned: Path, tmp_path: Path) -> None:
    results = copytree(untuned, tmp_path / "results")
    collect(SUITE, done, results, untuned=["canter-late"])
    collect(SUITE, done, results)
    protocol = json.loads((results / "protocol.json").read_text())
    assert protocol["untuned"] == ["canter-late", "canter-samples", "canter[p=.8,deadline=2T]"]
    collect(replace(SUITE, trials=9), done, results, owner="Ann", untuned=["oort+late"])
    added = {**protocol, "untuned": [*protocol["untuned"], "oort+late"]}
    assert json.loads((results / "protocol.json").read_text()) == added


def test_older_results_have_no_methods_without_tuning(untuned: Path, tmp_path: Path) -> None:
    results = copytree(untuned, tmp_path / "results")
    protocol = json.loads((results / "protocol.json").read_text())
    del protocol["untuned"]
    (results / "protocol.json").write_text(json.dumps(protocol))
    board = load_board(results)
    assert "untuned" not in {entry.column for entry in board.entries}
    text = markdown(board)
    assert "## Not tuned" not in text
    assert "--untuned" not in text


def test_a_damaged_protocol_is_named(done: Path, tmp_path: Path) -> None:
    (tmp_path / "protocol.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"protocol\.json is damaged"):
        collect(SUITE, done, tmp_path)


@pytest.mark.parametrize(
    ("name", "error"), [("canter+nothing", UnknownName), ("canter[p=2]", BadSetting), ("canter[p=.8", BadSetting)]
)
def test_a_wrong_name_without_tuning_is_refused_before_anything_runs(
    name: str, error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error):
        run_benchmark(SUITE, tmp_path, untuned=[name])
    assert not list(tmp_path.iterdir())


def test_gifts_go_to_every_method_that_can_carry_them() -> None:
    carriers = gifted([*FEDAVG, "prox+1t", "oort", "canter", "fedbalancer"])
    assert carriers == ["fedavg+1t", "prox+1t", "oort", "fedbalancer"]
    assert with_gifts("fedavg+2t") == with_gifts("fedavg+1t")
    assert "UsefulWork" in json.dumps([with_gifts(name) for name in carriers])


def test_a_run_that_is_executed_again_has_the_recorded_bytes(done: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    (verdict,) = verify(done / "results", tmp_path, sample=1, say=lines.append, suites={"tiny-1": SUITE})
    assert verdict.same
    assert verdict.notes == ()
    assert "same bytes" in lines[0]


def test_a_changed_record_is_found(done: Path, tmp_path: Path) -> None:
    runs = pl.read_parquet(done / "results" / "runs.parquet")
    changed = runs.with_columns(sha256_model=pl.lit("0" * 64), data=pl.lit("1" * 64))
    changed.write_parquet(tmp_path / "runs.parquet")
    (verdict,) = verify(tmp_path, tmp_path / "out", sample=1, suites={"tiny-1": SUITE})
    assert not verdict.same
    assert verdict.differing == ("model.safetensors",)
    assert verdict.notes == ("other data",)


def test_a_sample_takes_runs_of_different_cells_first() -> None:
    names = [f"sha256_{name}" for name in ("evals", "rounds", "population", "model")]
    rows = [
        {"cell": cell, "method": "m", "owner": "", "seed": seed, "status": "done", **dict.fromkeys(names, "x")}
        for cell in "abc"
        for seed in range(4)
    ]
    runs = pl.DataFrame(rows)
    for seed in range(5):
        assert {row["cell"] for row in choose_runs(runs, 3, seed)} == set("abc")
    assert choose_runs(runs, 4, 1) == choose_runs(runs, 4, 1)
    assert {row["cell"] for row in choose_runs(runs, 9, 0, ["b"])} == {"b"}
    with pytest.raises(BadSetting, match="no recorded run"):
        choose_runs(runs, 3, 0, ["d"])
