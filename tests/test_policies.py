"""One contract for every policy that a registered method uses: frozen, equal after a copy, deterministic."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from types import NoneType
from typing import Any

import numpy as np
import pytest
from builders import MODIFIED, Unchanged, heard, make_ledger, make_order, make_report, make_result, make_setup, same

from fedbalancer.core.randomness import stream
from fedbalancer.core.types import Layout, RoundResult, ServerState
from fedbalancer.methods.table import BASES, SLOTS, method
from fedbalancer.server.server import STATEFUL_SLOTS, Server


def used() -> list[tuple[str, Any]]:
    """Every different policy of every registered method, with its slot."""
    found: list[tuple[str, Any]] = []
    for name in [*BASES, *MODIFIED]:
        made = method(name)
        found.extend((slot, getattr(made, slot)) for slot in SLOTS if (slot, getattr(made, slot)) not in found)
    return found


POLICIES = used()
each_policy = pytest.mark.parametrize(
    ("slot", "policy"), POLICIES, ids=[f"{slot}-{policy}" for slot, policy in POLICIES]
)
each_server_policy = pytest.mark.parametrize(
    ("slot", "policy"), [pair for pair in POLICIES if pair[0] in STATEFUL_SLOTS], ids=str
)

LEDGER = heard(make_ledger([30, 60, 90, 120, 150, 180]), [0, 1, 2, 3], over_count=[5.0, 6.0, 7.0, 8.0])
SETUP = make_setup(LEDGER)
REPORTS = [
    replace(each, arrays={"variate": each.update})
    for each in (make_report("c0", [1.0, 2.0]), make_report("c1", [3.0, -1.0], 20.0))
]
RESULT = make_result(REPORTS, missing=["c2"], loss_threshold=0.5)


def state_for(slot: str, policy: Any) -> ServerState:
    """A state in the middle of a FedBalancer run, with this policy in its slot."""
    first = Server(method("fedbalancer"), SETUP).init(np.array([1.0, 1.0], dtype=np.float32))
    state = replace(first, round=3, ledger=LEDGER)
    return replace(state, **{slot: policy.init(SETUP)}) if slot in STATEFUL_SLOTS else state


def select(policy: Any) -> Any:
    order = make_order(loss_threshold=0.5, sample_cap=15, deadline_s=6.0)
    return policy.select(30, np.linspace(0, 1, 30), 1.0, order, stream(0, "samples"))


USES: dict[str, Callable[[Any, ServerState], Any]] = {
    "clients": lambda policy, state: policy.select_clients(SETUP, state, np.arange(6)),
    "samples": lambda policy, _: select(policy),
    "deadline": lambda policy, state: policy.plan(SETUP, state, np.array([0, 1, 5])),
    "work": lambda policy, _: policy.batches(float, 7.5, 3, 4),
    "aggregate": lambda policy, state: policy.aggregate(SETUP, state, REPORTS),
    "model_average": lambda policy, state: policy.after(SETUP, state, np.array([3.0, 4.0], dtype=np.float32)),
    "late": lambda policy, state: policy.weighted(SETUP, state, [replace(REPORTS[0], staleness=2), REPORTS[1]]),
    "threshold": lambda policy, state: policy.threshold(SETUP, state),
    "pace": lambda policy, state: policy.observe(SETUP, state, RESULT),
    "summary": lambda policy, _: policy.summarize(
        np.linspace(0, 1, 9), np.arange(4), 1.0, make_order(), stream(0, "noise")
    ),
    "compress": lambda policy, _: policy.encode(np.ones(2, dtype=np.float32), Layout([("w", (2,))]), 7, None),
    "train": lambda policy, _: policy.client_state(Layout([("w", (2,))])),
    "part": lambda policy, _: policy.mask(Layout([("w", (2,))]), "c0", 0.5, make_order()),
}
"""What each slot is there for."""


def test_every_slot_is_covered() -> None:
    assert {slot for slot, _ in POLICIES} == set(SLOTS) == set(USES)


@each_policy
def test_is_a_frozen_dataclass_of_plain_values(slot: str, policy: Any) -> None:
    assert is_dataclass(policy)
    assert not hasattr(policy, "__dict__") or set(vars(policy)) == {field.name for field in fields(policy)}
    plain = [field for field in fields(policy) if field.name != "inner"]  # one that is around another policy
    assert all(isinstance(getattr(policy, field.name), (int, float, str, bool, NoneType)) for field in plain)
    for name in ["invented", *(field.name for field in fields(policy))]:
        with pytest.raises(FrozenInstanceError):
            setattr(policy, name, 1)


@each_policy
def test_survives_pickling_and_copying(slot: str, policy: Any) -> None:
    assert pickle.loads(pickle.dumps(policy)) == policy == copy.deepcopy(policy)
    assert hash(policy) == hash(copy.deepcopy(policy))


@each_policy
def test_is_deterministic_and_changes_no_argument(slot: str, policy: Any) -> None:
    state = state_for(slot, policy)
    with Unchanged(SETUP, state, REPORTS, RESULT):
        first = USES[slot](policy, state)
    assert same(first, USES[slot](policy, state))
    assert same(first, USES[slot](pickle.loads(pickle.dumps(policy)), copy.deepcopy(state)))


def observed(slot: str, policy: Any, state: ServerState, result: RoundResult) -> Any:
    """The state of the policy after the result; an aggregator is only asked where there is something to average."""
    if slot == "model_average":
        return policy.after(SETUP, state, state.weights)
    if slot != "aggregate":
        return policy.observe(SETUP, state, result)
    return policy.aggregate(SETUP, state, result.reports)[1] if result.reports else state.aggregate


@each_server_policy
def test_what_a_server_policy_remembers_is_frozen_and_pure(slot: str, policy: Any) -> None:
    state = state_for(slot, policy)
    for result in (RESULT, make_result(missing=["c0"]), make_result()):
        with Unchanged(SETUP, state, result):
            after = observed(slot, policy, state, result)
        assert same(after, observed(slot, policy, state, result))
        assert same(pickle.loads(pickle.dumps(after)), after)
        if after is not None:
            with pytest.raises(FrozenInstanceError):
                setattr(after, fields(after)[0].name, 0)
        state = replace(state, **{slot: after})


def test_states_start_the_same_for_the_same_setup() -> None:
    for slot, policy in POLICIES:
        if slot in STATEFUL_SLOTS:
            assert same(policy.init(SETUP), policy.init(make_setup(LEDGER)))
