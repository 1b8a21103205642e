"""A spec is written down and read back whole; a new option needs no change anywhere else."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import get_type_hints

import pytest
from experiments import tinytask
from hypothesis import given
from hypothesis import strategies as st

import fedbalancer as fb
from fedbalancer.core.errors import RunFolderError, UnknownName
from fedbalancer.experiments.plan import ComparisonPlan
from fedbalancer.experiments.simulation import resolve_spec
from fedbalancer.experiments.spec import ExecutionOptions, RunOptions, RunSpec, from_manifest
from fedbalancer.simulation.executors import Resources


@dataclass(frozen=True, kw_only=True)
class Wider(RunSpec):
    """A spec with an option that nothing else knows of."""

    colour: str = "red"


def test_a_new_option_reaches_every_run_the_manifest_and_the_file_of_a_comparison() -> None:
    base = Wider(task="synthetic", users=8, colour="blue")
    plan = ComparisonPlan.make(base, ["fedavg+1t", "fedbalancer"], 2)
    assert [(spec.method, spec.seed, spec.colour) for spec in plan.specs] == [  # type: ignore[attr-defined]
        ("fedavg+1t", 0, "blue"), ("fedbalancer", 0, "blue"), ("fedavg+1t", 1, "blue"), ("fedbalancer", 1, "blue"),
    ]  # fmt: skip
    written = json.loads(json.dumps(plan.file.spec))
    assert Wider.from_json(written) == plan.base
    settings, method = resolve_spec(base, plan.task)
    assert json.loads(json.dumps(base.manifest(plan.task, settings, method)))["spec"]["colour"] == "blue"
    with pytest.raises(RunFolderError, match="does not know: colour"):
        RunSpec.from_json(written)


def test_what_run_and_compare_take_is_what_the_spec_has() -> None:
    hints, execution = get_type_hints(RunSpec), get_type_hints(ExecutionOptions)
    of_run = {name: hint for name, hint in get_type_hints(RunOptions).items() if name not in execution}
    assert {name: hints[name] for name in of_run} == of_run
    assert execution.keys() <= {field.name for field in fields(Resources)}
    assert all(field.kw_only for field in fields(RunSpec))
    with pytest.raises(UnknownName, match="colour"):
        fb.run("synthetic", colour="blue")  # type: ignore[call-arg]


@given(
    st.integers(0, 2**63 - 1), st.none() | st.integers(1, 99), st.none() | st.floats(1, 1e9),
    st.dictionaries(st.sampled_from(["w", "p"]), st.floats(0.5, 1)), st.sampled_from(["fast", "plain"]), st.booleans(),
)  # fmt: skip
def test_what_is_written_down_is_read_back(
    seed: int, users: int | None, budget_s: float | None, settings: dict[str, float], backend: str, timing_only: bool
) -> None:
    spec = RunSpec(
        task="watch", method="oort", seed=seed, users=users, budget_s=budget_s, settings=settings, backend=backend,
        timing_only=timing_only, variant="v", rounds=users, device="cuda:1", scale="paper",
        target=None if timing_only else 0.25,
    )  # fmt: skip
    assert RunSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_a_task_and_a_method_of_ones_own_are_given_again() -> None:
    task, method = tinytask.load(), fb.method("fedbalancer")
    spec = RunSpec(task=task, method=method, seed=4)
    written = json.loads(json.dumps(spec.to_json()))
    assert (written["task"], written["method"]) == (None, None)
    assert RunSpec.from_json(written, task, method) == spec
    for given_again in ((None, method), (task, None)):
        with pytest.raises(RunFolderError, match=r"fedbalancer\.resume\(folder, task="):
            RunSpec.from_json(written, *given_again)


def test_a_manifest_without_a_spec_is_refused() -> None:
    with pytest.raises(RunFolderError, match="has no spec"):
        from_manifest({"method": "fedbalancer"})
