"""The policies that the server sends to a client arrive unchanged."""

from __future__ import annotations

import json

import pytest

from fedbalancer.client.policies import KNOWN, ClientPolicies
from fedbalancer.client.samples import EverySample
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.settings import resolve
from fedbalancer.methods.table import BASES, MODIFIERS, method, method_of_run

CHANGED = resolve({"p": 0.7, "noise_factor": 0.3, "prox_mu": 0.2, "compress.rank": 7, "forward_pass": "every"})


@pytest.mark.parametrize("name", [*BASES, *(f"prox+1t{name}" for name in MODIFIERS if name[0] == "+")])
def test_every_method_can_be_told(name: str) -> None:
    policies = method_of_run(name, CHANGED).client
    told = policies.to_json()
    assert told is not None
    assert ClientPolicies.from_json(told) == policies


def test_every_known_policy_is_used_by_some_method() -> None:
    names = [*BASES, *(f"{base}{name}" for base in ("prox+1t", "fedbalancer") for name in MODIFIERS)]
    tracked = "threshold=TrackedThreshold,pace=ConstantPace,summary=fraction-tracker"
    names += [
        "fedbalancer+batches+forecast",
        "fedbalancer[summary=histogram]",
        "prox+1t[summary=secagg-histogram]",
        f"fedbalancer-clients[{tracked}]",
        "fedavg+1t[train=FineTuning]",
        "fedavg+1t[part=LocalLayers]",
    ]
    used: dict[str, set[str]] = {slot: set() for slot in KNOWN}
    for name in names:
        try:
            made = method(name).client
        except BadSetting:
            continue
        for slot in KNOWN:
            used[slot].add(type(getattr(made, slot)).__name__)
    assert used == {slot: {policy.__name__ for policy in known.values()} for slot, known in KNOWN.items()}


def test_a_policy_of_ones_own_cannot_be_told_by_name() -> None:
    class Mine(EverySample):
        pass

    assert ClientPolicies(samples=Mine()).to_json() is None


@pytest.mark.parametrize(
    "change",
    [
        {"samples": {"policy": "OverThreshold", "q": 1}}, {"samples": None}, {"work": {}}, {"mu": "x"}, {"mu": -1.0},
        {"mu": float("nan")}, {"forward_pass": "never"}, {"extra": 1}, {"summary": {"policy": "eval"}},
        {"samples": {"policy": "WholeEpochs"}},
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(change: dict[str, object]) -> None:
    told = json.loads(ClientPolicies().to_json() or "")
    with pytest.raises(BadSetting):
        ClientPolicies.from_json(json.dumps({**told, **change}))


@pytest.mark.parametrize("text", ["", "5", "[]", "{", "null", '{"mu": 1}'])
def test_a_text_that_is_no_such_thing_is_refused(text: str) -> None:
    with pytest.raises(BadSetting):
        ClientPolicies.from_json(text)
