"""Runs side by side: a process that dies takes nothing along for good."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from experiments import tinytask
from simulation.executors.harness import Killer

import fedbalancer as fb
from fedbalancer.core.errors import RunFolderError
from fedbalancer.core.processes import DIED
from fedbalancer.experiments.comparison import run_comparison
from fedbalancer.experiments.jobs import Job, JobPool
from fedbalancer.experiments.plan import ComparisonPlan
from fedbalancer.experiments.progress import JobEvent
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.simulation.executors import Resources

FILES = ("rounds.parquet", "evals.parquet", "clients.parquet", "model.safetensors")


def fragile(folder: Path, deadly: bool = False) -> fb.Task:
    """A task whose model, made for the first time in a process of the pool, waits there to be killed."""

    def model() -> Any:
        if deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        tinytask_model = tinytask.linear()
        from simulation.executors.trainers import Large

        Large(folder)._wait_to_be_killed()
        return tinytask_model

    return tinytask.load(model=model, model_bytes=40)


def contents(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in FILES]


def test_a_killed_process_is_replaced_and_its_runs_end_in_the_same_bytes(tmp_path: Path) -> None:
    events: list[JobEvent] = []
    killer = Killer(tmp_path)
    task = fragile(tmp_path)
    jobs = [Job(RunSpec(task=task, method="fedavg+1t", seed=seed), tmp_path / f"seed-{seed}") for seed in range(3)]
    with JobPool(task, 2, Resources()) as pool:
        last = pool.run(jobs, events.append, lambda: False)
        killer.victim()
        assert {event.kind for event in last.values()} == {"done"}
        assert pool.run([], events.append, lambda: False) == {}
    for seed in range(3):
        fb.run(tinytask.load(), "fedavg+1t", seed, out=tmp_path / "alone", overwrite=True)
        assert contents(tmp_path / f"seed-{seed}") == contents(tmp_path / "alone")
    assert [event.kind for event in events if event.kind != "running"] == ["done"] * 3


def test_a_run_that_kills_every_process_fails_in_words(tmp_path: Path) -> None:
    task = fragile(tmp_path, deadly=True)
    job = Job(RunSpec(task=task, method="fedavg+1t"), tmp_path / "run")
    with JobPool(task, 1, Resources()) as pool:
        last = pool.run([job], lambda event: None, lambda: False)
    assert last[job.key] == JobEvent(job.key, "failed", why=DIED)


def test_a_process_may_die_as_often_as_it_likes_while_its_run_comes_further(tmp_path: Path) -> None:
    """It dies after every second round, more often than would be forgiven if nothing was gained."""
    deaths = tmp_path / "deaths"

    def count(scores: Any, labels: Any) -> Any:
        saved = sorted(path.name for path in (tmp_path / "run" / "checkpoint").glob("step-*"))
        reached = int(saved[-1].removeprefix("step-")) if saved else 0
        died = deaths.read_text().split() if deaths.exists() else []
        if reached >= 2 * (len(died) + 1):
            deaths.write_text(" ".join([*died, str(reached)]))
            os.kill(os.getpid(), signal.SIGKILL)
        return tinytask.plain_loss(scores, labels)

    settings = {"checkpoint_s": 0.0}
    spec = RunSpec(task=tinytask.load(loss=count), method="fedavg+1t", rounds=12, settings=settings, backend="plain")
    job = Job(spec, tmp_path / "run")
    with JobPool(spec.load_task(), 1, Resources()) as pool:
        last = pool.run([job], lambda event: None, lambda: False)
    assert last[job.key].kind == "done"
    assert len(deaths.read_text().split()) > 3
    fb.run(tinytask.load(loss=tinytask.plain_loss), "fedavg+1t", rounds=12, settings=settings, backend="plain",
           out=tmp_path / "alone")  # fmt: skip
    assert contents(tmp_path / "run") == contents(tmp_path / "alone")


def test_one_job_of_several_is_stopped_and_can_continue(tmp_path: Path) -> None:
    specs = [RunSpec(task=tinytask.load(), method="fedavg+1t", seed=seed, rounds=2000) for seed in range(2)]
    jobs = [Job(specs[0], tmp_path / "long"), Job(replace(specs[1], rounds=3), tmp_path / "short")]
    last: dict[int, JobEvent] = {}
    with JobPool(tinytask.load(), 2, Resources()) as pool:
        for job in jobs:
            pool.submit(job)
        assert not pool.has_room
        while pool.is_busy:
            for event in pool.wait():
                last[event.key[1]] = event
                if event.kind == "running":
                    pool.stop(jobs[0].key)
    assert (last[0].kind, last[1].kind) == ("stopped", "done")
    assert fb.resume(tmp_path / "short", task=tinytask.load()).status == "done"


def test_a_comparison_has_one_writer_and_the_other_is_told(tmp_path: Path) -> None:
    plan = ComparisonPlan.make(RunSpec(task=tinytask.load(), rounds=2), ["fedavg+1t"], 1, extend=1.0)
    refused: list[str] = []

    def listen(event: JobEvent) -> None:
        with pytest.raises(RunFolderError, match="another process is writing there") as error:
            run_comparison(plan, tmp_path / "out", resumed=True, jobs=1)
        refused.append(str(error.value))

    assert not run_comparison(plan, tmp_path / "out", jobs=1, listen=listen).failed
    assert refused
    assert not run_comparison(plan, tmp_path / "out", resumed=True, jobs=1).failed, "and afterwards it is free"


@pytest.mark.parametrize(("jobs", "workers"), [(1, None), (2, 2), (None, 1)])
def test_a_comparison_gives_the_same_bytes_however_it_is_shared_out(
    jobs: int | None, workers: int | None, tmp_path: Path
) -> None:
    base = RunSpec(task=tinytask.load(), rounds=3)
    plan = ComparisonPlan.make(base, ["fedavg+1t", "fedbalancer"], 1, extend=1.0)
    result = run_comparison(plan, tmp_path / "out", jobs=jobs, resources=Resources(workers=workers))
    assert not result.failed
    budget_s = plan.budgets_s[0]
    settings = {"rounds": 3, "eval_every_s": budget_s / 50}
    fb.run(tinytask.load(), "fedbalancer", settings=settings, budget_s=budget_s, out=tmp_path / "alone")
    assert contents(tmp_path / "out" / "fedbalancer" / "seed-0") == contents(tmp_path / "alone")
