"""One method several times in a comparison, with settings of its own in brackets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from experiments import tinytask

import fedbalancer as fb
from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.experiments.plan import ComparisonPlan
from fedbalancer.experiments.simulation import resolve_spec
from fedbalancer.experiments.spec import RunSpec, from_manifest, move_policies_into_names
from fedbalancer.reporting.results import load
from fedbalancer.reporting.scores import score_comparison
from fedbalancer.server.deadline import FixedDeadline

METHODS = ["fedavg+1t", "fedavg[deadline=.5T]", "fedbalancer[ w = 2 ]", "fedbalancer[p=0.75,w=2]"]
NAMES = ["fedavg+1t", "fedavg[deadline=.5T]", "fedbalancer[w=2]", "fedbalancer[w=2,p=.75]"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("variants") / "out[*?]"  # nor may the user's own folder be taken for a pattern
    fb.compare(tinytask.load(), METHODS, seeds=1, out=folder, jobs=1, settings={"w": 7}, extend=1.0)
    return folder


def test_each_has_a_folder_a_row_and_settings_of_its_own(compared: Path) -> None:
    summary = json.loads((compared / "summary.json").read_text())
    assert list(summary["methods"]) == NAMES
    manifests = {name: json.loads((compared / name / "seed-0" / "manifest.json").read_text()) for name in NAMES}
    assert [manifests[name]["settings"].get("w") for name in NAMES] == [None, None, 2, 2]
    assert [manifests[name]["settings"].get("p") for name in NAMES] == [None, None, 1.0, 0.75]
    assert [manifests[name]["spec"]["method"] for name in NAMES] == NAMES
    assert all(manifests[name]["spec"]["settings"]["w"] == 7 for name in NAMES)
    scored = score_comparison(load(compared))
    assert scored["fedbalancer[p=0.75, w=2]"].method == NAMES[3]  # by any spelling
    table = (compared / "table.md").read_text()
    assert all(f"| {name} |" in table for name in NAMES)
    assert "damaged" not in table


def test_the_runs_are_those_of_the_settings(compared: Path) -> None:
    alone = fb.run(tinytask.load(), "fedbalancer", settings={"w": 2, "p": 0.75}, rounds=3)
    rounds = pl.read_parquet(compared / NAMES[3] / "seed-0" / "rounds.parquet", glob=False)
    assert rounds["end_s"][:3].to_list() == alone.rounds["end_s"].to_list()
    whole, half = (
        pl.read_parquet(compared / name / "seed-0" / "rounds.parquet", glob=False)["deadline_s"][0]
        for name in NAMES[:2]
    )
    assert half == pytest.approx(whole / 2, abs=1)


def test_brackets_change_no_budget() -> None:
    plain, with_brackets = (
        ComparisonPlan.make(RunSpec(task=tinytask.load()), [method, "fedavg+1t"], 2)
        for method in ("fedbalancer", "fedbalancer[epochs=1,batch_size=3,clients_per_round=2]")
    )
    assert plain.budgets_s == with_brackets.budgets_s
    assert plain.rounds == with_brackets.rounds


def test_the_same_method_twice_is_refused_whatever_the_spelling() -> None:
    spellings = ["fedbalancer[w=5,p=.75]", "fedbalancer[p=0.75, w=5]"]
    with pytest.raises(BadSetting, match="appears twice"):
        ComparisonPlan.make(RunSpec(task=tinytask.load()), spellings, 1)


def test_brackets_go_over_settings_and_hold_for_a_method_made_in_python() -> None:
    task = tinytask.load()
    for method in ("fedbalancer[epochs=2]", fb.method("fedbalancer[epochs=2]")):
        spec = RunSpec(task=task, method=method, settings={"epochs": 4})
        assert resolve_spec(spec, task)[0].epochs == 2
    with pytest.raises(BadSetting, match="clients_per_round = 99"):
        resolve_spec(RunSpec(task=task, method="fedavg+1t[clients_per_round=99]"), task)


def test_timing_only_knows_them() -> None:
    seconds = [
        fb.run(tinytask.load(), method, timing_only=True, rounds=3).rounds["end_s"][-1]
        for method in ("fedavg[deadline=.5T]", "fedavg[deadline=2T]")
    ]
    assert seconds[0] < seconds[1]


def test_a_run_goes_on_with_its_own_settings(tmp_path: Path) -> None:
    out = tmp_path / "run"
    fb.run(tinytask.load(), "fedbalancer[w=2,epochs=2]", rounds=2, out=out, budget_s=60.0)
    longer = fb.resume(out, task=tinytask.load(), budget_s=200.0)
    whole = fb.run(tinytask.load(), "fedbalancer[w=2,epochs=2]", budget_s=200.0)
    assert longer.rounds.equals(whole.rounds)
    spec = from_manifest(json.loads((out / "manifest.json").read_text()), tinytask.load())
    assert spec.method == "fedbalancer[epochs=2,w=2]"  # in the order of the settings
    assert spec.overrides == {}


def test_a_policy_for_every_method_stands_in_every_name_and_the_budget_is_the_published_methods() -> None:
    slots = {"deadline": "fedbalancer.server.deadline:FixedDeadline(multiple=3)", "w": 4}
    base, methods = move_policies_into_names(
        RunSpec(task=tinytask.load(), settings=slots), ["fedavg+1t", "fedbalancer[deadline=.5T]", "fedbalancer[p=.75]"]
    )
    own = "deadline=fedbalancer.server.deadline:FixedDeadline(multiple=3)"
    assert methods == [f"fedavg+1t[{own}]", "fedbalancer[deadline=.5T]", f"fedbalancer[p=.75,{own}]"]
    assert base.overrides == {"w": 4}
    plan = ComparisonPlan.make(base, methods, 1)
    assert plan.budgets_s == ComparisonPlan.make(RunSpec(task=tinytask.load()), ["fedavg+1t"], 1).budgets_s


def test_a_comparison_from_before_names_said_so_still_goes_on() -> None:
    slots = {"deadline": "fedbalancer.server.deadline:WaitForShare"}
    old = RunSpec.from_json({"task": "synthetic", "method": "fedavg+1t", "users": 12, "settings": slots})
    assert ComparisonPlan.make(old, ["fedavg+1t"], 1).method_names == ("fedavg+1t",)


def test_policies_for_every_method_do_not_go_with_a_method_made_in_python() -> None:
    slots = {"deadline": "fedbalancer.server.deadline:WaitForShare"}
    with pytest.raises(BadSetting, match=r"pass them to fedbalancer.method\("):
        fb.compare(tinytask.load(), [fb.method("fedavg+1t")], seeds=1, settings=slots)


def test_one_method_twice_with_policies_made_in_python(tmp_path: Path) -> None:
    methods = ["fedavg+1t", *(fb.method("fedbalancer", deadline=FixedDeadline(k)) for k in (1, 2))]
    methods.append(fb.method("fedbalancer", deadline=FixedDeadline(3), name="mine"))
    table = fb.compare(tinytask.load(), methods, seeds=1, jobs=1, rounds=3, extend=1.0, out=tmp_path / "c")
    twice = [f"fedbalancer[deadline=FixedDeadline(multiple={k})]" for k in (1, 2)]
    assert [each.method for each in table.methods] == ["fedavg+1t", *twice, "mine"]
    assert (tmp_path / "c" / twice[1] / "seed-0" / "rounds.parquet").is_file()


def test_a_method_object_whose_name_would_leave_the_folder_is_refused() -> None:
    hostile = replace(fb.method("fedavg+1t"), name="../../outside")
    with pytest.raises(BadSetting, match="no slash"):
        ComparisonPlan.make(RunSpec(task=tinytask.load()), [hostile], 1)


@pytest.mark.parametrize("name", ["nonsense", "fedbalancer+nonsense", "nonsense[w=5]"])
def test_an_unknown_method_is_told_before_the_task_is_looked_for(name: str) -> None:
    with pytest.raises(UnknownName, match="nonsense"):
        move_policies_into_names(RunSpec(task="a task that is nowhere"), ["fedavg+1t", name])


def test_a_policy_that_the_folder_of_a_task_has_is_looked_for_with_the_task() -> None:
    named = ["fedbalancer[deadline=beside_the_task:Mine]"]
    assert move_policies_into_names(RunSpec(task="a task that is nowhere"), named)[1] == named
