"""comparison.json is read as it was written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedbalancer.core.errors import RunFolderError
from fedbalancer.experiments.plan import ComparisonPlan
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.store import ComparisonFile

WHOLE = ComparisonFile(
    task="watch", variant="v1", scale="paper", methods=("fedavg+1t", "oort"), seeds=(0, 7), budgets_s={0: 1.5, 7: 2.5},
    rounds=9, extend=3.0, spec={"task": "watch"},
)  # fmt: skip
PLAN = {
    "task": "synthetic", "methods": ["fedavg+1t", "prox+1t"], "seeds": [0, 1], "rounds": 25, "extend": 1.5,
    "budgets_s": {"0": 2807.5, "1": 3039.25},
    "spec": {"task": "synthetic", "method": "fedavg+1t", "users": 8, "settings": {"rounds": 25}, "backend": "plain"},
}  # fmt: skip


def test_what_is_written_is_read_and_people_find_the_task_first(tmp_path: Path) -> None:
    WHOLE.write(tmp_path)
    assert ComparisonFile.read(tmp_path) == WHOLE
    assert list(json.loads((tmp_path / "comparison.json").read_text()))[:4] == ["task", "variant", "scale", "methods"]


def test_a_file_gives_the_plan(tmp_path: Path) -> None:
    (tmp_path / "comparison.json").write_text(json.dumps(PLAN))
    plan = ComparisonPlan.read(tmp_path)
    assert plan.base == RunSpec(task="synthetic", method="fedavg+1t", users=8, settings={"rounds": 25}, backend="plain")
    assert (plan.methods, plan.seeds, plan.rounds, plan.extend) == (("fedavg+1t", "prox+1t"), (0, 1), 25, 1.5)
    assert ComparisonPlan.read(tmp_path, backend="fast", device=None).base.backend == "fast"
    assert ComparisonFile.read(tmp_path).budgets_s == {0: 2807.5, 1: 3039.25}


@pytest.mark.parametrize("spec", [None, {"task": None, "method": "oort"}, {"task": "synthetic", "method": None}])
def test_what_a_file_cannot_hold_cannot_be_resumed_from_it(tmp_path: Path, spec: dict[str, object] | None) -> None:
    (tmp_path / "comparison.json").write_text(json.dumps({**PLAN, "spec": spec}))
    assert ComparisonFile.read(tmp_path).methods == ("fedavg+1t", "prox+1t")
    with pytest.raises(RunFolderError, match="add=folder"):
        ComparisonPlan.read(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"methods": ["a"], "seeds": ["x"]}'])
def test_damage_is_told_with_the_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(RunFolderError, match="holds no comparison"):
        ComparisonFile.read(tmp_path)
    (tmp_path / "comparison.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"comparison\.json .*run the comparison again"):
        ComparisonFile.read(tmp_path)
