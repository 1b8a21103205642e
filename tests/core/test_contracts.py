"""The base classes declare every question, and a wrapper answers each as the wrapped policy does."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np
import pytest
from builders import make_setup, make_state

from fedbalancer.client.samples import _OfLabels
from fedbalancer.core.contracts import EVERYTHING, LOSSES, NOTHING, SLOTS, DeadlinePolicy, Policy, ThresholdPolicy
from fedbalancer.core.types import ServerState, Setup
from fedbalancer.core.wrapping import NOT_FORWARDED, STATE_METHODS, Wrapping, questions, reactions
from fedbalancer.methods.policy_registry import POLICIES
from fedbalancer.server.aggregate import CheckedUpdates, WeightedMean
from fedbalancer.server.clients import CappedParticipation, GroupFloor, Oort, Uniform
from fedbalancer.server.deadline import FixedDeadline, LimitedDeadline, PeakDeadline

if find_spec("flwr"):
    import fedbalancer.flower.aggregation  # noqa: F401 - a wrapper, too


def subclasses(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


OURS = sorted({each for each in subclasses(Policy) if each.__module__.startswith("fedbalancer.")}, key=str)
CONCRETE = [each for each in OURS if not inspect.isabstract(each)]
WRAPPERS = [each for each in CONCRETE if issubclass(each, Wrapping) and each is not Wrapping]
ASKED = [(kind, name) for kind in WRAPPERS for name in questions(SLOTS[kind.slot])]


def is_abstract(declared: Any) -> bool:
    return bool(getattr(declared, "__isabstractmethod__", False))


def answer(name: str, declared: Any) -> Any:
    """An answer that no other policy gives: a value, or a method that returns one."""
    if name == "reacts_to":
        return EVERYTHING
    if isinstance(declared, property):
        return f"the answer to {name}"
    return lambda self, *arguments: None if name in STATE_METHODS else {name: "answered"}


def answering(slot: str) -> Any:
    """A policy that answers every question of its slot by a value of its own."""
    answers = {name: answer(name, declared) for name, declared in questions(SLOTS[slot]).items()}
    return type("Answering", (SLOTS[slot],), answers)()


def wrapped(kind: Any) -> Any:
    """The wrapper around an answering policy."""
    inner = answering(kind.slot)
    if kind is _OfLabels:
        return _OfLabels(inner, np.zeros(3, dtype=np.int64))
    if is_dataclass(kind):
        return kind(inner=inner)
    return kind(inner, *[None] * 5)


def arguments(declared: Any, wrapper: Any) -> list[Any]:
    """An argument for every parameter of a method, with the wrapper's own state in its slot."""
    setup = make_setup()
    own = wrapper.init(setup) if "init" in questions(SLOTS[wrapper.slot]) else None
    state = make_state(**{wrapper.slot: own}) if own is not None else make_state()
    known = {"setup": setup, "state": state, "own": own, "reports": [], "cohort": [], "clients": []}
    return [known.get(name) for name in list(inspect.signature(declared).parameters)[1:]]


def test_the_shipped_wrappers_are_found() -> None:
    names = {wrapper.__name__ for wrapper in WRAPPERS}
    assert {"CappedParticipation", "CheckedUpdates", "GroupFloor", "LimitedDeadline", "_OfLabels"} <= names


@pytest.mark.parametrize(("kind", "question"), ASKED)
def test_every_wrapper_forwards_every_question(kind: Any, question: str) -> None:
    declared = questions(SLOTS[kind.slot])[question]
    if question in STATE_METHODS or is_abstract(declared):
        own = inspect.getattr_static(kind, question)
        assert own is not declared
        return
    wrapper = wrapped(kind)
    found, wanted = getattr(wrapper, question), getattr(wrapper.inner, question)
    if inspect.isfunction(declared):
        asked = arguments(declared, wrapper)
        found, wanted = found(*asked), wanted(*asked)
        found = found.inner if question == "retime" else found
    assert found == (None if question in NOT_FORWARDED else wanted)


def test_a_wrapper_unwraps_the_state_before_it_asks() -> None:
    class Recording(DeadlinePolicy):
        def init(self, setup: Setup) -> str:
            return "inner state"

        def plan(self, setup: Any, state: Any, cohort: Any) -> tuple[float, int]:
            return 1.0, 1

        def between(self, setup: Any, state: ServerState, cohort: Any) -> Any:
            return state.deadline

    wrapper, setup = LimitedDeadline(Recording()), make_setup()
    state = make_state(deadline=wrapper.init(setup))
    assert wrapper.between(setup, state, np.arange(0)) == "inner state"
    assert wrapper.between(setup=setup, state=state, cohort=np.arange(0)) == "inner state"


def test_a_wrapper_must_define_its_state_and_its_decision_and_derive_from_a_slot() -> None:
    class Bare(Wrapping, DeadlinePolicy):
        pass

    with pytest.raises(TypeError, match=r"init.*observe.*plan"):
        Bare()  # type: ignore[abstract]
    with pytest.raises(TypeError, match="Lost must also derive from the base of its slot"):

        class Lost(Wrapping):
            pass


@pytest.mark.parametrize("policy", [each for policies in POLICIES.values() for each in policies.values()])
def test_a_policy_that_holds_another_one_is_a_wrapper(policy: Any) -> None:
    held = [field.name for field in fields(policy) if field.name in ("inner", "policy")] if is_dataclass(policy) else []
    assert not held or issubclass(policy, Wrapping)


@pytest.mark.parametrize("slot", SLOTS)
def test_a_policy_that_defines_only_what_is_required_has_the_default_answers(slot: str) -> None:
    declared = questions(SLOTS[slot])
    required = {name: lambda self, *asked: None for name, question in declared.items() if is_abstract(question)}
    silent: Any = type("Silent", (SLOTS[slot],), required)()
    assert (silent.slot, silent.needs_losses, silent.refuses(None), reactions(silent)) == (
        slot,
        False,
        None,
        EVERYTHING,
    )
    for name, question in declared.items():
        if isinstance(question, property):
            assert not callable(getattr(silent, name))


def test_a_policy_without_a_required_method_cannot_be_made() -> None:
    class Empty(ThresholdPolicy):
        pass

    with pytest.raises(TypeError, match="threshold"):
        Empty()  # type: ignore[abstract]


class TestReactions:
    def test_a_wrapper_reacts_to_what_it_and_the_wrapped_policy_react_to(self) -> None:
        assert reactions(GroupFloor(Uniform())) == NOTHING
        assert reactions(GroupFloor(Oort())) == LOSSES
        assert reactions(CappedParticipation(Uniform())) == LOSSES
        assert reactions(LimitedDeadline(FixedDeadline())) == NOTHING
        assert reactions(GroupFloor(CappedParticipation(Uniform()))) == LOSSES
        assert reactions(CheckedUpdates(WeightedMean())) == EVERYTHING

    def test_a_deadline_by_the_samples_over_the_threshold_reacts_to_losses(self) -> None:
        assert reactions(PeakDeadline()) == NOTHING
        assert reactions(PeakDeadline(counts="over")) == LOSSES

    def test_a_policy_without_a_declaration_reacts_to_everything_also_as_a_subclass(self) -> None:
        class Mine(Uniform):
            pass

        @dataclass(frozen=True)
        class MyFloor(GroupFloor):
            pass

        class Saying(Mine):
            reacts_to: ClassVar = NOTHING

        class Deciding(ThresholdPolicy):
            def threshold(self, setup: Setup, state: ServerState) -> float:
                return 0.0

        assert reactions(Deciding()) == reactions(Mine()) == reactions(MyFloor(Uniform())) == EVERYTHING
        assert reactions(GroupFloor(Mine())) == EVERYTHING
        assert reactions(Saying()) == NOTHING
