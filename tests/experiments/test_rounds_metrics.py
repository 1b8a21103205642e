"""Runs with several metrics, with targets of any metric, and with test data of clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from experiments import tinytask
from typer.testing import CliRunner

import fedbalancer as fb
from fedbalancer.cli.app import app
from fedbalancer.core.errors import BadData, BadSetting, UnknownName
from fedbalancer.core.metrics import Metric
from fedbalancer.experiments.rounds import ReachedValue
from fedbalancer.reporting.results import load
from fedbalancer.reporting.summary import run_summary, write_run_headline
from fedbalancer.store import EvalRow
from fedbalancer.training.trainer import TorchTrainer

METRICS = ["f1", "accuracy", "auroc", "perplexity"]
SPREAD = ["tested_clients", "client_mean", "client_std", "client_worst_decile", "client_best_decile"]


def tested(**changes: Any) -> fb.Task:
    """A task of which every second client has test data."""
    tests = {f"c{number}": tinytask.samples(6 + number, 50 + number) for number in range(0, 8, 2)}
    return tinytask.load(client_tests=tests, **changes)


def test_every_metric_has_its_column_for_any_number_of_workers_and_after_a_resume(tmp_path: Path) -> None:
    task = tinytask.load_wide()
    task = tinytask.load(model=tinytask.wide, test=task.test, metric=METRICS, client_tests=tested().client_tests)
    alone = fb.run(task, rounds=4, out=tmp_path / "alone")
    shared = fb.run(task, rounds=4, out=tmp_path / "shared", workers=2)
    assert {"f1", "auroc", "perplexity"} <= set(alone.evals.columns)
    assert alone.evals.equals(shared.evals)
    seen: list[dict[str, Any]] = []
    stopped = fb.run(task, rounds=4, out=tmp_path / "resumed", on_eval=lambda row: seen.append(row) or fb.STOP)  # type: ignore[func-returns-value]
    assert stopped.status == "stopped"
    assert seen[0] == stopped.evals.row(0, named=True)
    fb.resume(tmp_path / "resumed", task=task)
    for name in ("evals.parquet", "population.parquet"):
        assert (tmp_path / "resumed" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    manifest = json.loads((tmp_path / "alone" / "manifest.json").read_text())
    assert manifest["metric"] == {"name": "f1", "higher_is_better": True}
    assert (alone.metric.name, alone.value) == ("f1", alone.evals["f1"][-1])
    assert f"F1 {alone.value:.3f}" in repr(alone)


def test_the_columns_are_those_of_the_trainer() -> None:
    task = tinytask.load(metric=METRICS)
    run = fb.run(task, rounds=2)
    expected = TorchTrainer(task).evaluate(run.weights)
    last = run.evals.row(-1, named=True)
    assert {name: last[name] for name in (*METRICS, "loss")} == {
        name: expected.value(name) for name in (*METRICS, "loss")
    }


def test_a_run_stops_at_a_target_of_which_lower_is_better() -> None:
    task = tinytask.load(metric=["perplexity", "accuracy"], eval_every=1)
    whole = fb.run(task, rounds=8)
    target = float(whole.evals["perplexity"][4])
    reached = fb.run(task, rounds=8, target=target)
    assert len(reached.rounds) < 8
    assert reached.value <= target < reached.evals["perplexity"][-2]
    by_loss = fb.run(task, rounds=8, target=float(whole.evals["loss"][2]), target_metric="loss")
    assert (by_loss.metric.name, len(by_loss.rounds)) == ("loss", 2)
    with pytest.raises(BadSetting, match=r"target = 80 must be a value of accuracy above 0 and at most 1; 80% is 0.8"):
        fb.run(task, rounds=8, target=80, target_metric="accuracy")
    with pytest.raises(UnknownName, match="unknown metric of this task 'mae'"):
        fb.run(task, rounds=8, target_metric="mae")


def test_a_held_value_of_which_lower_is_better_is_the_mean_of_three() -> None:
    found = ReachedValue(on_grid=True, metric=Metric("mae"))
    found.add(
        EvalRow(1, 0.0, float(at), float("nan"), 1.0, "seconds", metrics={"mae": error})
        for at, error in enumerate((0.9, 0.3, 0.6, 0.3))
    )
    assert found.is_at(0.4)
    assert not found.is_at(0.39)


def test_clients_are_evaluated_on_their_own_test_data_during_the_run_and_at_its_end() -> None:
    task = tested(metric=["perplexity", "accuracy"])
    run = fb.run(task, rounds=4)
    trainer = TorchTrainer(task)
    values = [
        trainer.evaluate_client(run.weights, client).metrics["perplexity"] for client in sorted(task.client_tests)
    ]
    last = run.evals.row(-1, named=True)
    assert [last[name] for name in SPREAD] == [
        4, pytest.approx(np.mean(values)), pytest.approx(np.std(values)), pytest.approx(np.quantile(values, 0.9)),
        pytest.approx(np.quantile(values, 0.1)),
    ]  # fmt: skip
    assert run.evals["client_mean"].n_unique() > 1
    assert run.population is not None
    by_client = {row["client"]: row for row in run.population.iter_rows(named=True)}
    assert {name: row["tested_on"] for name, row in by_client.items()} == {
        f"c{number}": "train" if number % 2 else "test" for number in range(8)
    }
    assert [by_client[client]["perplexity"] for client in sorted(task.client_tests)] == values
    own = TorchTrainer(tinytask.load()).evaluate_client(run.weights, "c1")
    assert by_client["c1"]["accuracy"] == own.accuracy


def test_a_task_without_tests_of_clients_has_empty_columns() -> None:
    run = fb.run(tinytask.load(), rounds=1)
    assert run.evals.select(SPREAD).null_count().row(0) == (run.evals.height,) * 5
    assert run.population is not None
    assert set(run.population["tested_on"]) == {"train"}


def test_no_more_than_eval_clients_are_tested() -> None:
    run = fb.run(tested(), rounds=1, settings={"eval_clients": 3})
    assert set(run.evals["tested_clients"]) == {3}


def test_fairness_is_that_of_the_test_data_and_the_page_says_so(tmp_path: Path) -> None:
    methods = ["fedavg+1t", "fedavg+2t"]
    held_out = fb.compare(tested(), methods, seeds=1, jobs=1, extend=1.0, out=tmp_path / "held", rounds=3)
    trained = fb.compare(tinytask.load(), methods, seeds=1, jobs=1, extend=1.0, out=tmp_path / "own", rounds=3)
    assert (held_out["fedavg+1t"].fairness.tested_on, trained["fedavg+1t"].fairness.tested_on) == ("test", "train")
    population = pl.read_parquet(tmp_path / "held" / "fedavg+1t" / "seed-0" / "population.parquet")
    tests = population.filter(pl.col("tested_on") == "test")["accuracy"].to_numpy()
    assert held_out["fedavg+1t"].fairness.worst_decile == pytest.approx(np.quantile(tests, 0.1))
    for folder, words in (("held", "each client's own test data, which are not"), ("own", "own training data")):
        assert words in (tmp_path / folder / "table.md").read_text()
        assert words.replace("'", "&#39;") in (tmp_path / folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ({"zoe": tinytask.samples(4, 0)}, "client_tests names 'zoe', which is not a client of task 'tiny'"),
        ({"c0": (np.zeros((4, 3), np.float32), np.zeros(4, int))}, "the test data of client 'c0' has samples of shape"),
        ({"c0": (np.zeros((0, 4), np.float32), np.zeros(0, int))}, "the test data of client 'c0' has no samples"),
    ],
)
def test_bad_tests_of_clients_are_named(tests: Any, message: str) -> None:
    with pytest.raises(BadData, match=message):
        tinytask.load(client_tests=tests)


def test_the_summary_of_a_run_names_its_metric(tmp_path: Path) -> None:
    run = fb.run(tinytask.load(metric=["perplexity", "f1"]), "fedavg+1t", rounds=4, out=tmp_path / "run")
    results = load(tmp_path / "run")
    summary = run_summary(results)
    assert summary["metric"] == "perplexity"
    assert summary["perplexity"] == run.value
    assert summary["best_perplexity"] == run.evals["perplexity"].min()
    assert summary["f1"] == run.evals["f1"][-1]
    assert "accuracy" not in summary
    assert f"ended at a value of perplexity of {run.value:.3g} after 4 rounds" in write_run_headline(results)


def test_the_command_line_takes_metrics_from_the_task_file_and_a_target_metric(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, users = rng.normal(size=(80, 3)).astype(np.float32), np.repeat(["ann", "bob", "cy", "di"], 20)
    np.savez(tmp_path / "data.npz", x=x, y=(x.sum(axis=1) > 0).astype(int), users=users)
    (tmp_path / "my_task.toml").write_text(
        '[data]\nkind = "npz"\npath = "data.npz"\nclient_test_share = 0.25\n[model]\nname = "mlp"\n'
        '[settings]\nrounds = 2\nmetric = ["f1", "accuracy"]\n'
    )
    start = ["run", str(tmp_path / "my_task.toml"), "-m", "fedavg+1t", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, [*start, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["f1"] is not None
    assert pl.read_parquet(tmp_path / "run" / "evals.parquet")["tested_clients"].to_list() == [3, 3]
    by_loss = CliRunner().invoke(app, [*start, "--overwrite", "--target-metric", "loss"])
    assert ", loss " in by_loss.output
    wrong = CliRunner().invoke(app, [*start, "--overwrite", "--target-metric", "mae"])
    assert wrong.exit_code == 2
    assert "unknown metric of this task 'mae'" in wrong.output
    (tmp_path / "my_task.toml").write_text((tmp_path / "my_task.toml").read_text().replace('"f1"', '"f2"'))
    wrong = CliRunner().invoke(app, [*start, "--overwrite"])
    assert wrong.exit_code == 2
    assert "unknown metric 'f2'" in wrong.output
