"""At the end of a run every client's own accuracy is written down."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
from experiments import tinytask

import fedbalancer as fb
from fedbalancer.training.trainer import TorchTrainer


def population(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(folder / "population.parquet").drop("task", "method", "seed")


def test_there_is_a_row_per_client_with_the_final_model_on_its_own_data(tmp_path: Path) -> None:
    task = tinytask.load()
    run = fb.run(task, rounds=3, out=tmp_path / "run")
    found = population(tmp_path / "run")
    assert dict(zip(found["client"], found["samples"], strict=True)) == task.sizes
    assert set(found["device"]) <= {"slow", "mid", "fast"}
    assert set(found["clock_s"]) == {run.rounds["end_s"][-1]}
    trainer = TorchTrainer(task)
    assert found["accuracy"].to_list() == [
        trainer.evaluate_client(run.weights, client).accuracy for client in found["client"]
    ]
    assert run.population is not None
    assert run.population.equals(found)


def test_a_run_that_is_carried_on_keeps_the_values_of_its_budgets_end(tmp_path: Path) -> None:
    first = fb.run(tinytask.load(), budget_s=150.0, out=tmp_path / "run")
    before = (tmp_path / "run" / "population.parquet").read_bytes()
    second = fb.resume(tmp_path / "run", task=tinytask.load(), budget_s=400.0)
    assert second.rounds.height > first.rounds.height
    assert (tmp_path / "run" / "population.parquet").read_bytes() == before
    assert set(population(tmp_path / "run")["clock_s"]) == {first.rounds["end_s"][-1]}


def test_a_new_run_in_the_folder_has_a_population_of_its_own(tmp_path: Path) -> None:
    fb.run(tinytask.load(), rounds=2, out=tmp_path / "run")
    again = fb.run(tinytask.load(), rounds=4, out=tmp_path / "run", overwrite=True)
    assert set(population(tmp_path / "run")["clock_s"]) == {again.rounds["end_s"][-1]}


def test_of_many_clients_the_seed_draws_those_that_are_evaluated(tmp_path: Path) -> None:
    evaluated = {}
    for method in ("fedavg+1t", "fedbalancer"):
        for seed in (0, 1):
            run = fb.run(tinytask.load(), method, seed, rounds=1, settings={"eval_clients": 3})
            assert run.population is not None
            assert run.population.height == 8
            evaluated[method, seed] = run.population.filter(pl.col("accuracy").is_not_null())["client"].to_list()
    assert evaluated["fedavg+1t", 0] == evaluated["fedbalancer", 0]
    assert all(len(clients) == 3 for clients in evaluated.values())
    assert evaluated["fedavg+1t", 0] != evaluated["fedavg+1t", 1]


def test_a_run_that_trains_nothing_has_no_population(tmp_path: Path) -> None:
    assert fb.run(tinytask.load(), rounds=2, timing_only=True, out=tmp_path / "run").population is None
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["status"] == "done"
    assert not (tmp_path / "run" / "population.parquet").exists()
