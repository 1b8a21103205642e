"""A run gives the same bytes whatever happens around it, and ends in words when it fails."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from builders import MODIFIED
from experiments import tinytask

import fedbalancer as fb
from fedbalancer.core.errors import BadData, BadSetting, RunFolderError, TrainingDiverged, UnknownName
from fedbalancer.experiments.execute import execute, resume
from fedbalancer.experiments.executor_cache import ExecutorCache
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.methods.table import BASES
from fedbalancer.simulation.executors import Resources
from fedbalancer.training.fast.kernels import describe_processor

ALL_NAMES = [*BASES, *MODIFIED, "canter+learned+robust", "canter+auto+robust"]
FILES = ("rounds.parquet", "evals.parquet", "clients.parquet", "model.safetensors")


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


def spec(method: str = "fedbalancer", **changes: object) -> RunSpec:
    return RunSpec(task=tinytask.load(), method=method, settings={"w": 2, **changes})


@pytest.fixture(scope="module")
def two_workers() -> Iterator[ExecutorCache]:
    with ExecutorCache(Resources(workers=2)) as executors:
        yield executors


@pytest.mark.parametrize(
    "method", ["fedavg+1t", "fedbalancer", "fedbalancer+batches", "sampleselection", "canter+autorate"]
)
def test_one_and_two_workers_give_the_same_bytes(method: str, two_workers: ExecutorCache, tmp_path: Path) -> None:
    execute(spec(method), tmp_path / "one")
    execute(spec(method), tmp_path / "two", executors=two_workers)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@pytest.mark.parametrize("backend", ["fast", "plain"])
def test_any_number_of_workers_gives_the_same_bytes(backend: str, tmp_path: Path) -> None:
    options = {"settings": {"w": 2}, "rounds": 4, "backend": backend}
    fb.run(tinytask.load_wide(), out=tmp_path / "inline", **options)  # type: ignore[arg-type]
    for workers in (1, 2, 3):
        out = tmp_path / str(workers)
        fb.run(tinytask.load_wide(), out=out, executor="pool", workers=workers, **options)  # type: ignore[arg-type]
        assert contents(out) == contents(tmp_path / "inline")


def test_a_resumed_run_keeps_its_backend_by_default(tmp_path: Path) -> None:
    def backend() -> str:
        return str(json.loads((tmp_path / "run" / "manifest.json").read_text())["backend"])

    begun = RunSpec(task=tinytask.load(), method="fedavg+1t", backend="plain")
    execute(begun, tmp_path / "run", stopped=lambda: True)
    assert backend() == "plain"
    resume(tmp_path / "run", task=tinytask.load(), stopped=lambda: True)
    assert backend() == "plain"
    assert resume(tmp_path / "run", task=tinytask.load(), backend="fast").status == "done"
    assert backend() == "fast"
    fb.run(tinytask.load(), "fedavg+1t", backend="fast", out=tmp_path / "fast")
    assert contents(tmp_path / "run") == contents(tmp_path / "fast")


def test_the_manifest_says_which_kernels_and_for_which_processor(tmp_path: Path) -> None:
    def kernels(name: str, **options: Any) -> dict[str, str]:
        fb.run(tinytask.load(), "fedavg+1t", rounds=1, out=tmp_path / name, **options)
        found: dict[str, str] = json.loads((tmp_path / name / "manifest.json").read_text())["kernels"]
        return found

    fast = kernels("fast")
    assert set(fast) == {"processor", "conv", "dense", "lstm", "row", "words"}
    assert fast["processor"] == describe_processor()
    for options in ({"backend": "plain"}, {"timing_only": True}):
        assert kernels("-".join(options), **options) == {"processor": fast["processor"]}


@pytest.mark.parametrize("stop_after", [0, 1, 3, 5])
def test_a_stopped_run_resumes_to_the_same_bytes(stop_after: int, tmp_path: Path) -> None:
    execute(spec(), tmp_path / "whole")
    seen: list[int] = []
    stopped = execute(
        spec(),
        tmp_path / "cut",
        progress=lambda p: seen.append(p.round),
        stopped=lambda: max(seen, default=0) >= stop_after,
    )
    assert stopped.status == "stopped"
    assert resume(tmp_path / "cut", task=tinytask.load()).status == "done"
    assert contents(tmp_path / "whole") == contents(tmp_path / "cut")


@pytest.mark.parametrize("name", ALL_NAMES)
def test_the_state_of_every_method_survives_a_stop(name: str, tmp_path: Path) -> None:
    execute(spec(name), tmp_path / "whole")
    seen: list[int] = []
    execute(spec(name), tmp_path / "cut", progress=lambda p: seen.append(p.round), stopped=lambda: 3 in seen)
    assert resume(tmp_path / "cut", task=tinytask.load()).status == "done"
    assert max(seen) == 3
    assert contents(tmp_path / "whole") == contents(tmp_path / "cut")


def test_tables_agree_with_each_other(tmp_path: Path) -> None:
    result = execute(spec("prox+1t"), tmp_path / "run")
    rounds, clients = result.rounds, result.clients
    assert rounds["round"].to_list() == list(range(1, 7))
    assert (rounds["start_s"][1:] == rounds["end_s"][:-1]).all()
    assert (rounds["end_s"] - rounds["start_s"] <= rounds["deadline_s"] + 20 + 1e-9).all()
    completed = clients.filter(pl.col("outcome") == "completed").group_by("round").len().sort("round")
    assert completed["len"].to_list() == rounds.filter(pl.col("completed") > 0)["completed"].to_list()
    assert result.evals["round"].to_list() == [0, 2, 4, 6]


def test_a_budget_ends_the_run_instead_of_rounds(tmp_path: Path) -> None:
    result = execute(RunSpec(task=tinytask.load(), method="fedavg+wfa", budget_s=150.0), tmp_path / "run")
    assert result.rounds["end_s"][-1] >= 150.0 > result.rounds["start_s"][-1]


def test_timing_only_keeps_the_clock_of_the_trained_run(tmp_path: Path) -> None:
    task = tinytask.load()
    trained = fb.run(task, "fedavg+1t")
    timed = fb.run(task, "fedavg+1t", timing_only=True)
    assert trained.rounds["end_s"].to_list() == timed.rounds["end_s"].to_list()
    assert len(timed.evals) == 0


def test_an_occupied_folder_is_refused_unless_overwritten(tmp_path: Path) -> None:
    execute(spec("fedavg+1t"), tmp_path / "run")
    with pytest.raises(RunFolderError, match="--overwrite"):
        execute(spec("fedavg+1t"), tmp_path / "run")
    execute(spec("prox+1t"), tmp_path / "run", overwrite=True)
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["method"] == "prox+1t"


def test_a_diverging_run_is_marked_failed_with_client_and_round(tmp_path: Path) -> None:
    with pytest.raises(TrainingDiverged, match=r"round \d+.*c\d"):
        execute(spec("fedavg+wfa", learning_rate=1000.0, rounds=200), tmp_path / "run", task=_explosive())
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["status"] == "failed"
    assert "c" in manifest["why"]
    assert (tmp_path / "run" / "rounds.parquet").is_file()


def _explosive() -> fb.Task:
    def squared(outputs, labels):  # type: ignore[no-untyped-def]
        return ((outputs[:, 0] - labels) ** 2) ** 2

    return tinytask.load(loss=squared)


def test_labels_beyond_the_model_are_named(tmp_path: Path) -> None:
    features, labels = tinytask.samples(30, 1)
    labels = labels.copy()
    labels[7] = 5
    task = tinytask.load(clients={"bad": (features, labels), "good": tinytask.samples(30, 2)})
    with pytest.raises(BadData, match=r"bad.*5"):
        execute(RunSpec(task=task, method="fedavg+1t"), tmp_path / "run")


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        ({"empty": (np.zeros((0, 4), np.float32), np.zeros(0, np.int64))}, "empty.*no samples"),
        ({"short": (np.zeros((3, 4), np.float32), np.zeros(2, np.int64))}, "short.*3 features but 2 labels"),
        ({"nan": (np.full((3, 4), np.nan, np.float32), np.zeros(3, np.int64))}, "nan.*sample 0"),
        ({}, "no clients"),
    ],
)
def test_bad_data_is_refused_with_the_client(clients: dict[str, object], words: str) -> None:
    with pytest.raises(BadData, match=words):
        tinytask.load(clients=clients)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"method": "fedavgg+1t"}, UnknownName),
        ({"task": "wach"}, UnknownName),
        ({"seed": -1}, BadSetting),
        ({"rounds": 0}, BadSetting),
        ({"budget_s": float("nan")}, BadSetting),
        ({"settings": {"learning_rate": float("nan")}}, BadSetting),
        ({"settings": {"batchsize": 3}}, UnknownName),
        ({"settings": {"clients_per_round": 9}}, BadSetting),
        ({"workers": 0}, BadSetting),
        ({"executor": "cloud"}, UnknownName),
        ({"executor": "inline", "workers": 2}, BadSetting),
        ({"address": "auto"}, BadSetting),
        ({"executor": "ray", "address": "127.0.0.1:1"}, BadSetting),
        ({"backend": "fats"}, UnknownName),
        ({"device": "tpu"}, BadSetting),
    ],
)
def test_mistakes_raise_errors_of_this_package(arguments: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        fb.run(**{"task": tinytask.load(), "method": "fedavg+1t", **arguments})  # type: ignore[arg-type]


def test_only_the_default_cohort_is_reduced_to_the_number_of_clients(tmp_path: Path) -> None:
    assert fb.run(tinytask.load(clients_per_round=50, rounds=1), "fedavg+wfa").rounds["selected"].to_list() == [8]
    with pytest.raises(BadSetting, match=r"clients_per_round = 9.*1 to 8"):
        fb.run(tinytask.load(), "fedavg+wfa", settings={"clients_per_round": 9})


def test_without_a_folder_the_same_tables_stay_in_memory_and_no_file_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk = fb.run(tinytask.load(), settings={"w": 2}, out=tmp_path / "run")

    def refuse(*arguments: object) -> None:
        raise AssertionError(f"a file was touched: {arguments}")

    for name in ("fsync", "mkdir", "rename", "replace"):
        monkeypatch.setattr(os, name, refuse)
    in_memory = fb.run(tinytask.load(), settings={"w": 2})
    monkeypatch.undo()
    assert in_memory.folder is None
    assert in_memory.weights.tobytes() == on_disk.weights.tobytes()
    for name in ("rounds", "evals", "clients"):
        assert getattr(in_memory, name).equals(getattr(on_disk, name))
        written = pl.read_parquet(tmp_path / "run" / f"{name}.parquet")
        assert getattr(on_disk, name).equals(written.drop("task", "method", "seed"))


def test_a_run_of_an_own_task_says_how_to_resume_it(tmp_path: Path) -> None:
    execute(spec(), tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"fedbalancer\.resume"):
        resume(tmp_path / "run")


def test_an_interrupt_from_python_leaves_a_run_that_can_resume(tmp_path: Path) -> None:
    def interrupt(progress: object) -> None:
        if progress.round == 3:  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    execute(spec(), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        execute(spec(), tmp_path / "cut", progress=interrupt)
    assert json.loads((tmp_path / "cut" / "manifest.json").read_text())["status"] == "stopped"
    resume(tmp_path / "cut", task=tinytask.load())
    assert contents(tmp_path / "whole") == contents(tmp_path / "cut")
