"""At the end of a run it is written down which classes were trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from experiments import tinytask

import fedbalancer as fb
from fedbalancer.data import Task
from fedbalancer.experiments.execute import execute
from fedbalancer.experiments.spec import RunSpec

NAME = "fedbalancer[w=1,p=.75]"


def one_class_each(count: int = 40) -> Task:
    """Eight clients of one class each."""
    features = np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)
    clients = {f"c{number}": (features, np.full(count, number % 4)) for number in range(8)}
    return tinytask.load(clients=clients, test=(features, np.arange(count) % 4), model=four_classes)


def four_classes() -> Any:
    import torch

    return torch.nn.Linear(4, 4)


def test_the_counts_are_those_of_the_clients_that_trained(tmp_path: Path) -> None:
    task = one_class_each()
    run = fb.run(task, NAME, rounds=12, out=tmp_path / "run")
    assert run.classes is not None
    stored = pl.read_parquet(tmp_path / "run" / "classes.parquet").drop("task", "method", "seed")
    assert run.classes.equals(stored)
    done = run.clients.filter(pl.col("outcome") == "completed")
    by_class = done.with_columns(label=pl.col("client").str.slice(1).cast(pl.Int64) % 4)
    counted = by_class.group_by("label").agg(held=40 * pl.len(), trained=pl.col("samples").sum()).sort("label")
    assert (
        stored.select("label", "held", "trained")
        .filter(pl.col("held") > 0)
        .equals(counted.select(pl.all().cast(pl.Int64)))
    )
    assert stored["trained"].sum() < stored["held"].sum()  # something was left out, or the test shows nothing
    assert set(stored["clock_s"]) == {run.rounds["end_s"][-1]}


def stopped(task: Task, folder: Path, rounds: int = 3) -> None:
    seen = [0]
    spec = RunSpec(task=task, method=NAME, rounds=8)
    execute(spec, folder, progress=lambda p: seen.append(p.round), stopped=lambda: seen[-1] >= rounds)


def test_a_run_that_was_stopped_has_counted_all_its_rounds(tmp_path: Path) -> None:
    task = one_class_each()
    stopped(task, tmp_path / "run")
    assert not (tmp_path / "run" / "classes.parquet").exists()
    found = fb.resume(tmp_path / "run", task=task).classes
    assert found is not None
    assert found.equals(fb.run(task, NAME, rounds=8).classes)


@pytest.mark.parametrize(
    ("settings", "changes"),
    [({"eval_clients": 3}, {}), ({}, {"test": (np.zeros((9, 4), np.float32), np.zeros((9, 2), np.int64))})],
    ids=["more clients than are evaluated", "labels that are no classes"],
)
def test_where_nobody_counts_there_is_no_table(settings: dict[str, Any], changes: dict[str, Any]) -> None:
    task = tinytask.load()
    if changes:
        clients = {name: (x, np.stack([y, y], 1)) for name, (x, y) in task.clients.items()}
        run = fb.run(tinytask.load(clients=clients, **changes, loss=pairs, metric=right), rounds=1)
    else:
        run = fb.run(task, rounds=1, settings=settings)
    assert run.classes is None


def pairs(outputs: Any, labels: Any) -> Any:
    import torch

    return torch.nn.functional.cross_entropy(outputs, labels[:, 0], reduction="none")


def right(outputs: Any, labels: Any) -> tuple[Any, Any]:
    return (outputs.argmax(1) == labels[:, 0]).sum(), len(labels)
