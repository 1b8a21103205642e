"""A comparison follows the paper's rules: one budget per seed, one target per seed, and runs that go on if needed."""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from experiments import tinytask

import fedbalancer as fb
from fedbalancer.core.contracts import DeadlinePolicy
from fedbalancer.core.errors import BadData, BadSetting, FedBalancerError, RunFolderError, UnknownName
from fedbalancer.core.settings import resolve
from fedbalancer.experiments.comparison import interleave_by_seed, run_comparison
from fedbalancer.experiments.jobs import Job, JobPool
from fedbalancer.experiments.plan import ComparisonPlan
from fedbalancer.experiments.progress import JobEvent
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.reporting import score_folder
from fedbalancer.reporting.leaderboard import write_leaderboard
from fedbalancer.reporting.leaderboard_entries import add_comparison
from fedbalancer.reporting.summary import write_headline
from fedbalancer.simulation.executors import Resources
from fedbalancer.store import ComparisonFile, MemoryRecorder

METHODS = ["fedavg+1t", "fedavg+wfa", "fedbalancer"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare") / "out"
    fb.compare(tinytask.load(), METHODS, seeds=2, out=folder, jobs=2)
    return folder


def test_the_budget_is_the_clock_of_fedavg_1t_after_the_tasks_rounds(compared: Path) -> None:
    budgets = json.loads((compared / "comparison.json").read_text())["budgets_s"]
    for seed in (0, 1):
        alone = fb.run(tinytask.load(), "fedavg+1t", seed=seed)
        assert budgets[str(seed)] == alone.rounds["end_s"][-1]
        inside = pl.read_parquet(compared / "fedavg+1t" / f"seed-{seed}" / "rounds.parquet")
        assert inside["end_s"][:6].to_list() == alone.rounds["end_s"].to_list()


def test_every_run_covers_its_budget_and_stays_within_the_extension(compared: Path) -> None:
    document = json.loads((compared / "comparison.json").read_text())
    for method in METHODS:
        for seed in (0, 1):
            rounds = pl.read_parquet(compared / method / f"seed-{seed}" / "rounds.parquet")
            budget = document["budgets_s"][str(seed)]
            assert rounds["end_s"][-1] >= budget
            assert rounds["start_s"][-1] < 2 * budget


def test_the_folder_holds_all_that_is_promised(compared: Path) -> None:
    for name in ("summary.json", "table.md", "report.html", "comparison.json"):
        assert (compared / name).stat().st_size > 0
    assert list((compared / "figures").glob("*.png"))
    summary = json.loads((compared / "summary.json").read_text())
    assert set(summary["methods"]) == set(METHODS)
    best = [summary["methods"][name]["speedup"] for name in ("fedavg+1t", "fedavg+wfa")]
    assert any(score["mean"] > 0 for score in best)


def test_without_a_folder_the_scores_are_the_same_and_no_run_is_written(
    compared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedbalancer.store.folder.write_json", lambda *_: pytest.fail("a manifest was written"))
    monkeypatch.chdir(tmp_path)
    in_memory = fb.compare(tinytask.load(), METHODS, seeds=2, jobs=2)
    assert in_memory.to_json() == json.loads((compared / "summary.json").read_text())
    assert list(tmp_path.iterdir()) == []


def test_what_runs_have_in_common_is_trained_once_with_the_same_bytes(tmp_path: Path) -> None:
    """FedBalancer's settings make one run until its first window ends."""
    count = tmp_path / "trainings"
    methods = [fb.method("fedbalancer", resolve({"w": w, "lss": lss})) for w, lss in ((2, 0.1), (2, 0.2), (3, 0.1))]
    methods = [replace(method, name=f"fedbalancer{place}") for place, method in enumerate(methods)]
    task = tinytask.load(loss=partial(tinytask.counted_loss, str(count)))
    fb.compare(task, ["fedavg+1t", *methods], seeds=2, out=tmp_path / "out", jobs=2, workers=1)
    together = len(count.read_bytes())
    count.unlink()
    for method in ("fedavg+1t", *methods):
        name = method if isinstance(method, str) else method.name
        for seed in (0, 1):
            kept = tmp_path / "out" / name / f"seed-{seed}"
            spec = json.loads((kept / "manifest.json").read_text())["spec"]
            asked = {key: spec[key] for key in ("budget_s", "settings")}
            alone = fb.run(task, method, seed, **asked, out=tmp_path / name / str(seed))
            for table in ("rounds", "evals", "clients"):
                shared = pl.read_parquet(kept / f"{table}.parquet").drop("task", "method", "seed")
                own = getattr(alone, table)
                assert own.equals(shared.head(len(own))), (name, seed, table)
    assert together < 0.8 * len(count.read_bytes())
    assert [path.name for path in (tmp_path / "out").glob(".*")] == [".lock"], "what they shared is gone"


def test_runs_side_by_side_are_of_different_seeds() -> None:
    specs = [RunSpec(task="synthetic", method=m, seed=s) for s in range(3) for m in ("fedavg+1t", "prox+1t")]
    order = [(spec.seed, spec.method_name) for spec in interleave_by_seed(specs, 2)]
    assert order[:4] == [(0, "fedavg+1t"), (1, "fedavg+1t"), (0, "prox+1t"), (1, "prox+1t")]
    assert sorted(order) == sorted((spec.seed, spec.method_name) for spec in specs)


def test_a_run_in_memory_goes_on_as_one_in_a_folder_does(tmp_path: Path) -> None:
    """As a method does that has not reached the target within the budget."""
    key = ("fedbalancer", 0)
    base = RunSpec(task=tinytask.load(), method="fedbalancer", settings={"w": 2})
    fb.run(base.task, settings=base.settings, budget_s=150.0, out=tmp_path / "run")
    whole = fb.resume(tmp_path / "run", task=tinytask.load(), budget_s=400.0)
    with JobPool(tinytask.load(), 1, Resources()) as pool:
        first = pool.run([Job(replace(base, budget_s=150.0), MemoryRecorder())], lambda _: None, lambda: False)[key]
        assert first.memory is not None
        assert first.curve is not None
        assert first.curve.last_s < whole.rounds["end_s"][-1]
        longer = Job(base, first.memory, changes={"budget_s": 400.0})
        second = pool.run([longer], lambda _: None, lambda: False)[key]
    assert second.memory is not None
    assert all(frame.equals(getattr(whole, name)) for name, frame in second.memory.frames().items())


def test_a_comparison_of_which_nothing_is_left_is_an_error_that_says_why() -> None:
    def refuse() -> None:
        raise RuntimeError("no such model")

    with pytest.raises(FedBalancerError, match=r"fedavg\+1t seed 0 failed: .*no such model.*prox\+1t seed 0 failed"):
        fb.compare(tinytask.load(model=refuse, model_bytes=40), ["fedavg+1t", "prox+1t"], seeds=1, jobs=1)


def numbers(count: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 3)).astype(np.float32), rng.normal(size=count).astype(np.float32)


def regression(**options: Any) -> fb.Task:
    """A task that fits numbers, which have no accuracy."""
    from torch import nn

    return fb.Task(
        clients={f"c{row}": numbers(15, row) for row in range(5)}, test=numbers(20, 9), latency="har",
        model=lambda: nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), loss=lambda x, y: (x - y) ** 2,
        rounds=2, clients_per_round=3, **options,
    )  # fmt: skip


def test_an_accuracy_that_the_labels_do_not_have_is_refused_by_a_comparison_before_training(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="models need the extra [torch]")
    task = regression(metric="accuracy")
    assert fb.run(task, "fedavg+1t").status == "done"
    with pytest.raises(
        BadData,
        match=r"task 'custom' has no accuracy.*labels are float32 of shape \(\)\. Give .*metric='loss' or 'mae'",
    ):
        fb.compare(task, ["fedavg+1t", "prox+1t"], seeds=2, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore:prox")
def test_a_regression_is_compared_by_its_loss_or_another_error_of_which_lower_is_better(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="models need the extra [torch]")
    methods, out = ["fedavg+1t", "prox+1t"], tmp_path / "out"
    by_loss = fb.compare(regression(), methods, seeds=2, jobs=1, out=out, rounds=4)
    assert (len(by_loss.seeds), by_loss.metric.name) == (2, "loss")
    for seed in by_loss.seeds:
        (reference,) = (score for score in seed.scores if score.method == "fedavg+1t")
        assert seed.target == reference.final
        assert reference.time_s is not None
        easier = reference.reaches[0.9]
        assert easier.target == pytest.approx(seed.target / 0.9)
        assert easier.arrival.seconds <= reference.time_s
    table = (out / "table.md").read_text()
    assert "target loss" in table
    assert "Final loss" in table
    assert "at or below" in table
    summary = json.loads((out / "summary.json").read_text())
    assert summary["metric"] == {"name": "loss", "higher_is_better": False}
    assert summary["methods"]["fedavg+1t"]["loss"]["mean"] == by_loss["fedavg+1t"].final.mean
    page = (out / "report.html").read_text()
    assert "Target loss" in page
    assert not re.search(r">[^<]*accuracy", page.split("<script")[0], re.IGNORECASE)
    add_comparison(out, tmp_path / "board", "ann")
    entries = write_leaderboard(tmp_path / "board").entries
    assert {(entry.rule, entry.accuracy) for entry in entries} == {("fair, by loss", None)}
    several = regression(metric=["mae", "r2"])
    assert fb.compare(several, methods, seeds=1, jobs=1).metric.name == "mae"
    by_r2 = fb.compare(several, methods, seeds=1, jobs=1, target_metric="r2")
    assert by_r2.to_polars().columns[-2:] == ["r2", "r2_std"]
    with pytest.raises(UnknownName, match=r"unknown metric of this task 'f1'; known: loss, mae, r2"):
        fb.compare(several, methods, seeds=1, target_metric="f1")


@pytest.mark.filterwarnings("ignore:prox")
def test_a_task_without_accuracy_is_compared_by_a_metric_of_its_own() -> None:
    pytest.importorskip("torch", reason="models need the extra [torch]")
    near = regression(metric=lambda x, y: (((x - y) ** 2 < 1).sum(), len(y)))
    found = fb.compare(near, ["fedavg+1t", "prox+1t"], seeds=1, jobs=1, extend=1.0)
    assert 0 < found["prox+1t"].accuracy.mean <= 1
    with pytest.raises(
        FedBalancerError, match=r"nothing can be scored: .*no evaluation with a value of accuracy within"
    ):
        fb.compare(regression(metric=lambda x, y: (0, 0)), ["fedavg+1t"], seeds=1, jobs=1, extend=1.0)


def test_a_failing_run_does_not_take_the_others_along(tmp_path: Path) -> None:
    plan = ComparisonPlan.make(RunSpec(task=tinytask.load()), ["fedavg+1t", "prox+1t"], 1)
    events: list[JobEvent] = []
    broken = tmp_path / "out" / "prox+1t" / "seed-0"
    broken.mkdir(parents=True)
    (broken / "stranger.txt").write_text("not ours")
    result = run_comparison(plan, tmp_path / "out", resumed=True, listen=events.append, jobs=1)
    assert [event.key for event in result.failed] == [("prox+1t", 0)]
    assert result.outcomes["fedavg+1t", 0].kind == "done"
    assert (broken / "stranger.txt").read_text() == "not ours"


@pytest.mark.parametrize("kept", [False, True])
def test_a_comparison_whose_every_process_died_is_an_error_that_names_the_runs(tmp_path: Path, kept: bool) -> None:
    driver = os.getpid()

    def deadly() -> Any:
        if os.getpid() != driver:
            os.kill(os.getpid(), signal.SIGKILL)
        return tinytask.linear()

    task, out = tinytask.load(model=deadly, model_bytes=40), tmp_path / "out" if kept else None
    with pytest.raises(FedBalancerError, match="nothing can be scored") as caught:
        fb.compare(task, ["fedavg+1t", "fedbalancer"], seeds=[4], out=out, jobs=1, workers=1)
    for run in ("fedavg+1t seed 4 failed: ", "fedbalancer seed 4 failed: "):
        assert str(caught.value).count(run) == 1
    assert str(caught.value).count("died") == 2
    assert "\n" not in str(caught.value)
    assert (tmp_path / "out" / "report.html").is_file() == kept


def test_one_method_that_fails_leaves_the_scores_of_the_others(tmp_path: Path) -> None:
    """A learning rate that makes only the proximal term diverge."""
    settings = {"prox_mu": 900.0, "learning_rate": 10.0}
    found = fb.compare(tinytask.load(), ["fedavg+1t", "prox+2t"], seeds=1, settings=settings, jobs=1, workers=1)
    assert found["fedavg+1t"].speedup.mean == 1.0
    assert found["prox+2t"].speedup.mean is None
    assert any("prox+2t, seed 0 is not scored" in note for note in found.notes)


def test_all_methods_of_a_seed_are_evaluated_on_one_grid_of_fifty_parts_of_its_budget(compared: Path) -> None:
    budgets = json.loads((compared / "comparison.json").read_text())["budgets_s"]
    for seed in (0, 1):
        expected = [number * (budgets[str(seed)] / 50) for number in range(51)]
        for method in METHODS:
            evals = pl.read_parquet(compared / method / f"seed-{seed}" / "evals.parquet")
            times = evals.filter(pl.col("schedule") == "seconds")["clock_s"].to_list()
            assert times[:51] == expected
    own = {"eval_every_s": 20.0}
    plan = ComparisonPlan.make(RunSpec(task=tinytask.load(), settings=own), METHODS, 1)
    assert {spec.overrides["eval_every_s"] for spec in plan.specs} == {20.0}
    paper = ComparisonPlan.make(RunSpec(task=tinytask.load()), METHODS, 1, rule="paper")
    assert all("eval_every_s" not in spec.overrides for spec in paper.specs)


def test_by_the_papers_rule_runs_are_those_of_before(tmp_path: Path) -> None:
    fb.compare(tinytask.load(), ["fedavg+1t"], seeds=1, rule="paper", extend=1.0, out=tmp_path / "c", jobs=1, workers=1)
    alone = fb.run(tinytask.load(), "fedavg+1t")
    evals = pl.read_parquet(tmp_path / "c" / "fedavg+1t" / "seed-0" / "evals.parquet")
    assert evals.drop("task", "method", "seed").equals(alone.evals)


def test_the_main_target_may_be_a_share_and_the_folder_remembers_it(tmp_path: Path) -> None:
    options: Any = {"seeds": 1, "jobs": 1, "workers": 1, "targets": [0.9, 1.0]}
    found = fb.compare(tinytask.load(), ["fedavg+1t", "prox+1t"], out=tmp_path / "c", **options)
    assert found.target == pytest.approx(0.9 * (found["fedavg+1t"].accuracy.mean or 0))
    again = score_folder(tmp_path / "c")
    assert (again.targets, again.target) == ((0.9, 1.0), found.target)
    assert ComparisonFile.read(tmp_path / "c").targets == (0.9, 1.0)
    assert "90% of the final accuracy of the best FedAvg variant" in write_headline(found)


def test_one_method_cannot_have_a_grid_of_its_own() -> None:
    with pytest.raises(BadSetting, match="how methods are measured"):
        ComparisonPlan.make(RunSpec(task=tinytask.load()), ["fedavg+1t", "fedbalancer[eval_every_s=3]"], 1)


def test_occupied_folders_and_bad_plans_are_refused(compared: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="already holds a comparison"):
        fb.compare(tinytask.load(), METHODS, seeds=1, out=compared)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="other files"):
        fb.compare(tinytask.load(), METHODS, seeds=1, out=tmp_path)
    with pytest.raises(BadSetting, match="twice"):
        fb.compare(tinytask.load(), ["fedavg+1t", "fedavg+1t"], seeds=1)
    with pytest.raises(BadSetting, match="at least one"):
        fb.compare(tinytask.load(), [], seeds=1)
    with pytest.raises(UnknownName, match="did you mean fedbalancer"):
        fb.compare(tinytask.load(), ["fedbalancr"], seeds=1)


def test_overwriting_leaves_no_run_of_the_comparison_before(tmp_path: Path) -> None:
    out = tmp_path / "mine"
    fb.compare(tinytask.load(), ["fedavg+1t", "prox+1t"], [0, 3], rounds=2, out=out)
    (out / "notes.txt").write_text("mine")
    fb.compare(tinytask.load(), ["fedavg+1t"], [0], rounds=2, out=out, overwrite=True)
    rows = pl.read_parquet(out / "**" / "rounds.parquet")
    assert set(zip(rows["method"], rows["seed"], strict=True)) == {("fedavg+1t", 0)}
    assert not (out / "prox+1t").exists()
    assert (out / "notes.txt").read_text() == "mine", "what is not ours stays"


def test_methods_may_be_one_text_with_commas() -> None:
    found = fb.compare(tinytask.load(), "fedavg+1t,fedavg[deadline=.5T]", 1, rounds=2)
    assert [each.method for each in found.methods] == ["fedavg+1t", "fedavg[deadline=.5T]"]


@pytest.mark.parametrize("seeds", ["two", "1", 2.0, True, [0.5], ["1"]])
def test_seeds_that_are_no_whole_numbers_are_refused(seeds: Any) -> None:
    with pytest.raises(BadSetting, match=r"seeds? = "):
        fb.compare(tinytask.load(), ["fedavg+1t"], seeds, rounds=2)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"w": 5}, r"w is a setting, not an option; pass settings=\{'w': 5\}"),
        ({"round": 5}, "unknown option 'round'; did you mean rounds"),
        ({"on_round": print}, "unknown option 'on_round'"),
    ],
)
def test_an_unknown_keyword_is_named_and_a_setting_is_told_where_it_belongs(option: Any, said: str) -> None:
    with pytest.raises(FedBalancerError, match=said):
        fb.compare(tinytask.load(), ["fedavg+1t"], 1, **option)


def test_a_policy_that_raises_is_named_with_its_file_and_line() -> None:
    class Raising(DeadlinePolicy):
        """A deadline whose author made a mistake."""

        def plan(self, setup: Any, state: Any, cohort: Any) -> tuple[float, int]:
            return 1 / (len(cohort) - len(cohort)), 0

    mine = fb.method("fedavg+1t", deadline=Raising(), name="mine")
    with pytest.raises(FedBalancerError, match=r"ZeroDivisionError: .*test_comparison\.py, line \d+, in plan\)"):
        fb.compare(tinytask.load(), [mine], 1, rounds=2)
