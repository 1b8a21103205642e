"""Policies by name: ours, short forms, and a user's own with arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from fedbalancer.client.samples import RandomSamples
from fedbalancer.core.contracts import SLOTS
from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.methods.policy_registry import POLICIES, make_policy
from fedbalancer.server.aggregate import TrimmedMean
from fedbalancer.server.deadline import FixedDeadline, WaitForShare


@dataclass(frozen=True)
class Mine(FixedDeadline):
    """A deadline of a user's own."""

    first: int = 1
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.first < 0:
            raise ValueError("first must not be negative")


HERE = f"{__name__}:Mine"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _this())


def _this() -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(Mine=Mine)


@pytest.mark.parametrize(
    ("slot", "text", "build_policy"),
    [
        ("deadline", ".5T", FixedDeadline(0.5)),
        ("deadline", "2t", FixedDeadline(2)),
        ("deadline", "inf", WaitForShare()),
        ("deadline", "wait", WaitForShare()),
        ("deadline", "WaitForShare(share=.8)", WaitForShare(0.8)),
        ("samples", "RandomSamples", RandomSamples()),
        ("aggregate", "TrimmedMean(beta=.1)", TrimmedMean(0.1)),
        ("deadline", HERE, Mine()),
        ("deadline", f"{HERE}(first=60, names=('a', 'b'))", Mine(first=60, names=("a", "b"))),
        ("deadline", "fedbalancer.server.deadline:FixedDeadline(multiple=3)", FixedDeadline(3)),
    ],
)
def test_a_text_is_a_policy(slot: str, text: str, build_policy: Any) -> None:
    assert make_policy(slot, text) == build_policy


@pytest.mark.parametrize(
    ("slot", "text", "message"),
    [
        ("deadline", f"{HERE}(last=60)", "cannot be created with these arguments.*last"),
        ("deadline", f"{HERE}(first=-1)", "first must not be negative"),
        ("deadline", "fedbalancer.server.clients:Uniform", "not a policy for that slot"),
        ("deadline", "60", "must look like package.module:Class"),
        ("clients", ".5T", "must look like package.module:Class"),
    ],
)
def test_what_is_wrong_is_said(slot: str, text: str, message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        make_policy(slot, text)


def test_an_unknown_policy_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match="unknown policy for slot aggregate: 'Mdian'; did you mean Median"):
        make_policy("aggregate", "Mdian")


def test_every_slot_has_its_policies() -> None:
    assert POLICIES.keys() == SLOTS.keys()
    assert all(POLICIES.values())
