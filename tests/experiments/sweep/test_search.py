"""A sweep that runs: in a folder, on from where it stopped, and without what cannot win."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fedbalancer.core.errors import MissingData, RunFolderError
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.experiments.sweep.plan import SweepPlan, run_folder
from fedbalancer.experiments.sweep.search import Event, import_optuna, open_study, run_sweep

optuna = pytest.importorskip("optuna")


def plan(*space: str, rounds: int = 3, **options: Any) -> SweepPlan:
    base = RunSpec(task="synthetic", users=8, settings={"rounds": rounds, "eval_every": 1, "clients_per_round": 4})
    return SweepPlan.make(base, list(space) or ["w=2,5"], **options)


def test_a_grid_is_run_whole_and_the_same_command_adds_nothing(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    events: list[Event] = []
    found = run_sweep(plan(seeds=2), out, jobs=2, listen=events.append)
    assert {trial.method for trial in found.trials} == {"fedbalancer[w=2]", "fedbalancer[w=5]"}
    assert all(trial.state == "done" and len(trial.values) == 2 for trial in found.trials)
    assert found.best is not None
    assert found.best.value == min(trial.value or 9 for trial in found.trials)
    assert {event.kind for event in events} == {"running", "done"}
    table = pl.read_parquet(out / "trials.parquet")
    assert sorted(table["w"].to_list()) == [2, 5]
    assert "| fedbalancer[w=2] |" in (out / "table.md").read_text()
    assert (out / "figures" / "trials.png").read_bytes()[1:4] == b"PNG"
    assert "<svg" in (out / "figures" / "trials.svg").read_text()
    manifest = run_folder(out, "fedbalancer[w=2]", 1) / "manifest.json"
    before = manifest.stat().st_mtime_ns
    again = run_sweep(plan(seeds=2), out, jobs=1)
    assert again.to_json() == found.to_json()
    assert manifest.stat().st_mtime_ns == before


def test_another_sweep_does_not_go_into_its_folder(tmp_path: Path) -> None:
    run_sweep(plan(trials=1, objective="accuracy"), tmp_path / "a", jobs=1)
    with pytest.raises(RunFolderError, match="a sweep with a different space"):
        run_sweep(plan("w=2,7", objective="accuracy"), tmp_path / "a", jobs=1)
    fresh = run_sweep(plan("w=7,2", objective="accuracy", trials=1), tmp_path / "a", jobs=1, overwrite=True)
    assert len(fresh.trials) == 1
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").write_text("keep")
    with pytest.raises(RunFolderError, match="holds no sweep"):
        run_sweep(plan(), tmp_path / "b", jobs=1, overwrite=True)


def test_a_trial_whose_process_went_away_is_taken_up(tmp_path: Path) -> None:
    wanted = plan("lss=0.01..0.2", objective="accuracy", trials=2)
    study = open_study(wanted, tmp_path)
    lost = wanted.space.draw(study.ask())  # and never told
    (tmp_path / "sweep.json").write_text(json.dumps(wanted.to_json()))
    found = run_sweep(wanted, tmp_path, jobs=1)
    assert wanted.space.name(lost) in {trial.method for trial in found.trials}
    assert [trial.state for trial in found.trials] == ["done", "done"]


def test_more_trials_add_to_those_that_are_there(tmp_path: Path) -> None:
    one = run_sweep(plan("lss=0.01..0.2", objective="accuracy", trials=1), tmp_path / "s", jobs=1)
    three = run_sweep(plan("lss=0.01..0.2", objective="accuracy", trials=3), tmp_path / "s", jobs=1)
    assert len({trial.method for trial in three.trials}) == 3
    assert three.trials[0] == one.trials[0]


def test_what_lags_behind_the_median_is_given_up(tmp_path: Path) -> None:
    wanted = plan("lss=0.01..0.2", objective="accuracy", trials=9, rounds=300)  # long enough to be stopped within
    study = open_study(wanted, tmp_path)
    for number in range(8):
        good = optuna.create_trial(
            params={"lss": 0.1}, distributions={"lss": optuna.distributions.FloatDistribution(0.01, 0.2)},
            value=1.0, intermediate_values=dict.fromkeys(range(21), 1.0), user_attrs={"method": f"perfect-{number}"},
        )  # fmt: skip
        study.add_trial(good)
    (tmp_path / "sweep.json").write_text(json.dumps(wanted.to_json()))
    found = run_sweep(wanted, tmp_path, jobs=1)
    assert found.trials[-1].state == "given up"
    assert found.trials[-1].value is None
    assert found.best is not None
    assert found.best.method.startswith("perfect")


def test_trials_of_the_same_method_share_its_runs(tmp_path: Path) -> None:
    """Two values and four trials: with two processes, optuna suggests a method that is still running."""
    found = run_sweep(plan(objective="accuracy", sampler="random", trials=4), tmp_path / "s", jobs=2)
    assert [trial.state for trial in found.trials] == ["done"] * 4
    assert {trial.method for trial in found.trials} <= {"fedbalancer[w=2]", "fedbalancer[w=5]"}
    assert len({(trial.method, trial.value) for trial in found.trials}) == len(found.ranked)


def test_a_stop_is_no_end(tmp_path: Path) -> None:
    stopped = run_sweep(plan(objective="accuracy"), tmp_path / "s", jobs=1, stopped=lambda: True)
    assert stopped.stopped
    assert not stopped.trials
    assert len(run_sweep(plan(objective="accuracy"), tmp_path / "s", jobs=1).ranked) == 2


def test_without_optuna_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingData, match=r"pip install 'fedbalancer\[sweep\]'"):
        import_optuna()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"objective": "speed"}, "unknown objective"), ({"sampler": "tep"}, "did you mean tpe"),
     ({"trials": 0}, "trials = 0"), ({"share": 1.5}, "target = 1.5")],
)  # fmt: skip
def test_mistakes_are_told_before_anything_runs(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        plan(**options)
    with pytest.raises(Exception, match="grid needs lists"):
        plan("lss=0..1", sampler="grid")
