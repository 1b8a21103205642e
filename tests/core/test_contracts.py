"""A wrapper answers every question about a policy as the wrapped policy would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from builders import make_setup, make_state

from fedbalancer.core.contracts import EVERYTHING, LOSSES, NOTHING, Stateless, Traits, Wrapping, reactions, trait
from fedbalancer.methods.policy_registry import POLICIES
from fedbalancer.server.aggregate import ClippedAround, WeightedMean
from fedbalancer.server.clients import CappedParticipation, GroupFloor, Oort, Uniform
from fedbalancer.server.deadline import FixedDeadline, LimitedDeadline, PeakDeadline

if find_spec("flwr"):
    import fedbalancer.flower.aggregation  # noqa: F401 - a wrapper, too

QUESTIONS = sorted(name for name in vars(Traits) if not name.startswith("_"))


def subclasses(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


WRAPPERS = sorted({each for each in subclasses(Wrapping) if each.__module__.startswith("fedbalancer.")}, key=str)


class Answering:
    """A policy that answers every question by something of its own; a method by what it was asked with."""

    reacts_to = EVERYTHING
    refuses, between, cohort_faults = (
        lambda self, *asked, name=name: {name: "answered"} for name in ("refuses", "between", "cohort_faults")
    )

    def __getattr__(self, name: str) -> Any:
        if name in QUESTIONS:
            return f"the answer to {name}"
        raise AttributeError(name)

    def init(self, setup: Any) -> None:
        return None


def wrapped(kind: Any) -> Any:
    """The wrapper around `Answering`; that of a Flower run is made from the run."""
    if is_dataclass(kind):
        return kind(inner=Answering())
    server = SimpleNamespace(aggregate=Answering())
    return kind(SimpleNamespace(strategy=SimpleNamespace(method=SimpleNamespace(server=server))))


def arguments(question: str, wrapper: Any) -> tuple[Any, ...]:
    setup = make_setup()
    state = make_state(**{wrapper.slot: wrapper.init(setup)})
    return {"refuses": (None,), "between": (setup, state, []), "cohort_faults": (state, [])}[question]


def test_the_shipped_wrappers_are_found() -> None:
    assert {"CappedParticipation", "ClippedAround", "GroupFloor", "LimitedDeadline"} <= {w.__name__ for w in WRAPPERS}


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("kind", WRAPPERS)
def test_every_wrapper_forwards_every_question(kind: Any, question: str) -> None:
    wrapper = wrapped(kind)
    found, wanted = trait(wrapper, question), trait(Answering(), question)
    if callable(wanted):
        found, wanted = (each(*arguments(question, wrapper)) for each in (found, wanted))
    assert found == wanted


@pytest.mark.parametrize("policy", [each for policies in POLICIES.values() for each in policies.values()])
def test_a_policy_that_holds_another_one_is_a_wrapper(policy: Any) -> None:
    held = [field.name for field in fields(policy) if field.name in ("inner", "policy")] if is_dataclass(policy) else []
    assert not held or issubclass(policy, Wrapping)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_policy_that_says_nothing_has_the_default_answer(question: str) -> None:
    found, default = trait(Stateless(), question), getattr(Traits(), question)
    assert found == default or found.__func__ is default.__func__


def test_a_question_that_is_not_declared_is_a_mistake() -> None:
    with pytest.raises(AttributeError):
        trait(Stateless(), "need_losses")


class TestReactions:
    def test_a_wrapper_reacts_to_what_it_and_the_wrapped_policy_react_to(self) -> None:
        assert reactions(GroupFloor(Uniform())) == NOTHING
        assert reactions(GroupFloor(Oort())) == LOSSES
        assert reactions(CappedParticipation(Uniform())) == LOSSES
        assert reactions(LimitedDeadline(FixedDeadline())) == NOTHING
        assert reactions(GroupFloor(CappedParticipation(Uniform()))) == LOSSES
        assert reactions(ClippedAround(WeightedMean())) == EVERYTHING

    def test_a_deadline_by_the_samples_over_the_threshold_reacts_to_losses(self) -> None:
        assert reactions(PeakDeadline()) == NOTHING
        assert reactions(PeakDeadline(counts="over")) == LOSSES

    def test_who_does_not_say_reacts_to_everything_also_a_subclass_of_one_that_does(self) -> None:
        class Mine(Uniform):
            pass

        @dataclass(frozen=True)
        class MyFloor(GroupFloor):
            pass

        class Saying(Mine):
            reacts_to: ClassVar = NOTHING

        assert reactions(Stateless()) == reactions(Mine()) == reactions(MyFloor(Uniform())) == EVERYTHING
        assert reactions(GroupFloor(Mine())) == EVERYTHING
        assert reactions(Saying()) == NOTHING
