"""The pool: items reuse its runs, add missing ones, and continue stopped ones."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fedbalancer.core.errors import UnknownName
from fedbalancer.experiments.execute import execute
from fedbalancer.experiments.progress import JobEvent
from fedbalancer.paper.item import Request, Stopped, Work
from fedbalancer.paper.pool import REUSED, TaskPool
from fedbalancer.paper.scores import Group, score_groups
from fedbalancer.simulation.executors import Resources
from fedbalancer.store import read_manifest

TASK = "experiments.tinytask:load_named"
FILES = ("rounds.parquet", "evals.parquet", "model.safetensors")
METHODS = ("fedavg+1t", "fedavg+wfa", "fedbalancer[w=2,p=.75]")


class News:
    """Which runs were found, and which were started."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.found: set[tuple[str, int]] = set()
        self.started: set[tuple[str, int]] = set()
        self.rounds, self.stop_after = 0, stop_after

    def listen(self, event: JobEvent) -> None:
        if event.why == REUSED:
            self.found.add(event.key)
        else:
            self.started.add(event.key)
            self.rounds += event.kind == "running"

    def stopped(self) -> bool:
        return self.stop_after is not None and self.rounds > self.stop_after


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> Request:
    runs = tmp_path_factory.mktemp("pool")
    return Request(tasks=(TASK,), seeds=(0, 1), runs=runs, extend=1.5, jobs=1, resources=Resources(workers=1))


def measure(request: Request, methods: tuple[str, ...], stop_after: int | None = None) -> News:
    news = News(stop_after)
    score_groups(Work(request, TASK, news.listen, news.stopped), [Group("all", methods)])
    return news


def test_a_second_item_starts_no_run_that_is_there(request_: Request) -> None:
    first = measure(request_, METHODS[:2])
    assert not first.found
    again = measure(request_, METHODS[:2])
    assert again.found == first.started == {(method, seed) for method in METHODS[:2] for seed in (0, 1)}
    assert not again.started - again.found, "those that never reach the target have come to the end of their extension"
    other = measure(request_, METHODS[1:])
    assert {(METHODS[1], 0), (METHODS[1], 1)} <= other.found
    assert {key for key in other.started if key[0] == METHODS[2]} == {(METHODS[2], 0), (METHODS[2], 1)}


def test_a_stopped_one_goes_on_and_ends_in_the_same_bytes(request_: Request, tmp_path: Path) -> None:
    alone = replace(request_, runs=tmp_path / "alone", jobs=1, extend=1.0)
    cut = replace(alone, runs=tmp_path / "cut")
    measure(alone, METHODS)
    with pytest.raises(Stopped):
        measure(cut, METHODS, stop_after=3)
    measure(cut, METHODS)
    pools = [TaskPool.make(request, TASK, METHODS) for request in (alone, cut)]
    for method in METHODS:
        for file in FILES:
            places = [pool.folder / method / "seed-0" / file for pool in pools]
            assert places[0].read_bytes() == places[1].read_bytes()


def test_a_run_that_is_shorter_than_wanted_is_carried_on(request_: Request, tmp_path: Path) -> None:
    request = replace(request_, runs=tmp_path, seeds=(0,), extend=1.0)
    measure(request, METHODS[:1])
    pool = TaskPool.make(request, TASK, METHODS[:1])
    run = pool.folder / METHODS[0] / "seed-0"
    whole_s = pool.read_run(METHODS[0], 0).curve.last_s
    shutil.rmtree(run)
    execute(replace(pool.specs[METHODS[0], 0], budget_s=whole_s / 2), run)
    assert TaskPool.make(request, TASK, METHODS[:1]).read_run(METHODS[0], 0).curve.last_s < whole_s
    news = measure(request, METHODS[:1])
    assert news.started == {(METHODS[0], 0)}
    assert TaskPool.make(request, TASK, METHODS[:1]).read_run(METHODS[0], 0).curve.last_s == pytest.approx(whole_s)
    assert read_manifest(run)["status"] == "done"


def test_a_run_that_failed_is_named_and_the_others_stay(request_: Request, tmp_path: Path) -> None:
    request = replace(request_, runs=tmp_path, seeds=(0,), extend=1.0)
    pool = TaskPool.make(request, TASK, METHODS[:2])
    blocked = pool.folder / METHODS[1] / "seed-0"
    blocked.mkdir(parents=True)
    (blocked / "letter.txt").write_text("dear")
    work = Work(request, TASK)
    scored = score_groups(work, [Group("all", METHODS[:2])])
    assert any(note.startswith(f"{METHODS[1]} seed 0 failed: ") for note in work.notes)
    assert scored.frames["methods"]["method"].unique().to_list() == [METHODS[0]]


def test_what_makes_other_runs_makes_another_folder(request_: Request) -> None:
    folder = TaskPool.make(request_, TASK, METHODS[:1]).folder
    assert TaskPool.make(request_, TASK, METHODS).folder == folder, "methods and seeds share one"
    assert (
        TaskPool.make(replace(request_, seeds=tuple(range(5)), rule="paper", extend=3.0), TASK, METHODS).folder
        == folder
    )
    for changed in ({"settings": {"epochs": 2}}, {"rounds": 3}, {"backend": "plain"}):
        other = replace(request_, **changed)  # type: ignore[arg-type]
        assert TaskPool.make(other, TASK, METHODS).folder != folder
    wide = TaskPool.make(request_, "experiments.tinytask:load_wide", METHODS[:1]).folder
    assert wide.name.split("-")[-1] != folder.name.split("-")[-1]


def test_a_mistake_is_told_before_anything_runs(request_: Request, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="fedbalancer"):
        TaskPool.make(replace(request_, runs=tmp_path), TASK, ("fedbalancr",))
    assert not list(tmp_path.iterdir())
