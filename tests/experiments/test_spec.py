"""A spec is written down and read back whole; a new option needs no change anywhere else."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import Any, get_type_hints

import pytest
from experiments import tinytask
from hypothesis import given
from hypothesis import strategies as st

import fedbalancer as fb
from fedbalancer.core.errors import RunFolderError, UnknownName
from fedbalancer.experiments.plan import ComparisonPlan
from fedbalancer.experiments.simulation import resolve_spec
from fedbalancer.experiments.spec import RunOptions, RunSpec, from_manifest

OLD: dict[str, Any] = {
    "format": "fedbalancer run 1",
    "task": {
        "name": "synthetic", "variant": "alpha=1", "scale": "small", "users": 12, "variant_asked": "alpha=1",
        "source": "synthetic",
    },
    "method": "prox+1t", "method_is_named": True, "seed": 3, "overrides": {"w": 2}, "settings": {"w": 2, "p": 0.8},
    "rounds": 7, "budget_s": 20.5, "target": 0.5, "timing_only": True, "backend": "fast", "device": "cpu",
    "versions": {}, "started": "2026-01-01T00:00:00+00:00", "status": "stopped", "why": None,
}  # fmt: skip
"""A manifest from before the spec was in it."""


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
    hints = get_type_hints(RunSpec)
    assert {name: hints[name] for name in get_type_hints(RunOptions)} == get_type_hints(RunOptions)
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
        timing_only=timing_only, variant="v", rounds=users, target=0.25, device="cuda:1", scale="paper",
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


def test_a_manifest_from_before_the_spec_was_in_it_means_the_same() -> None:
    expected = RunSpec(
        task="synthetic", method="prox+1t", seed=3, users=12, variant="alpha=1", settings={"w": 2}, rounds=7,
        budget_s=20.5, target=0.5, timing_only=True,
    )  # fmt: skip
    assert from_manifest(OLD) == expected
    without = {name: value for name, value in OLD.items() if name not in ("backend", "device")}
    assert from_manifest(without) == replace(expected, backend="plain")
    with pytest.raises(RunFolderError, match=r"fedbalancer\.resume"):
        from_manifest({**OLD, "method_is_named": False})
