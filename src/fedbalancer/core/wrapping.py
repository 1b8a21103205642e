"""The questions that a policy may be asked, and the base of policies that wrap another policy."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from dataclasses import replace
from functools import wraps
from typing import Any, ClassVar

from fedbalancer.core.contracts import EVERYTHING, SLOTS, Policy, Private
from fedbalancer.core.types import ServerState, Setup


def questions(base: type) -> dict[str, Any]:
    """Return everything that the system may ask of a policy: names and their properties or functions.

    Args:
        base: The base class of a slot.

    >>> from fedbalancer.core.contracts import ThresholdPolicy
    >>> sorted(questions(ThresholdPolicy))
    ['init', 'needs_counts', 'needs_fractions', 'needs_losses', 'observe', 'reacts_to', 'refuses', 'threshold']
    """
    return {
        name: declared
        for kind in reversed(base.__mro__)
        if issubclass(kind, Policy)
        for name, declared in vars(kind).items()
        if not name.startswith("_") and (isinstance(declared, property) or inspect.isfunction(declared))
    }


def reactions(policy: Policy) -> frozenset[Private]:
    """Return what a policy reacts to, as its own class declares it.

    A policy that does not declare it is assumed to react to everything, so that no epsilon is claimed for it. So is a
    subclass that does not declare it again, because it may decide differently from its base class.

    Args:
        policy: The policy.
    """
    declared = "own_reactions" if isinstance(policy, Wrapping) else "reacts_to"
    return frozenset(policy.reacts_to) if declared in vars(type(policy)) else EVERYTHING


STATE_METHODS = ("init", "observe", "after")
"""Methods that return a policy's state. A wrapper has its own state, so it must define them."""

NOT_FORWARDED = ("fold",)
"""Questions about how a policy computes. The answer of `inner` would leave out what the wrapper does."""


class Wrapping(Policy):
    """Base of policies that change what another policy, `inner`, decides.

    Use it in front of the base of the slot: `class Slower(Wrapping, DeadlinePolicy)`. Every question that the slot
    declares is forwarded to `inner`, unless the wrapper answers it itself. So a wrapper cannot lose a property of the
    wrapped policy. The abstract methods of the slot, and those that return a state, remain for the wrapper to define.
    Its state is a dataclass whose field `inner` is the state of the wrapped policy.
    """

    own_reactions: ClassVar[frozenset[Private]] = EVERYTHING
    """What the wrapper itself reacts to, in addition to `inner`."""

    inner: Any

    def __init_subclass__(cls, **options: Any) -> None:
        """Add a forwarding property or method for every question that the class does not answer itself."""
        super().__init_subclass__(**options)
        if not issubclass(cls, tuple(SLOTS.values())):
            raise TypeError(f"{cls.__name__} must also derive from the base of its slot, for example DeadlinePolicy")
        for name, declared in questions(SLOTS[cls.slot]).items():
            own = inspect.getattr_static(cls, name) is not declared or name in NOT_FORWARDED
            if own or _is_abstract(declared):
                continue
            setattr(cls, name, _require(declared) if name in STATE_METHODS else _forward(name, declared))

    @property
    def reacts_to(self) -> frozenset[Private]:
        """Everything that the wrapper or the wrapped policy reacts to."""
        return self.own_reactions | reactions(self.inner)

    def unwrapped(self, state: ServerState) -> ServerState:
        """Return the server's state as the wrapped policy knows it.

        Args:
            state: The server's state.
        """
        return replace(state, **{self.slot: getattr(state, self.slot).inner})


def _is_abstract(declared: Any) -> bool:
    return bool(getattr(declared, "__isabstractmethod__", False))


def _require(declared: Any) -> Any:
    """Return an abstract method of the same name."""

    @wraps(declared)
    def undefined(self: Any, *arguments: Any) -> Any:
        raise NotImplementedError(declared.__name__)

    return abstractmethod(undefined)


def _forward(name: str, declared: Any) -> Any:
    """Return a property or method that asks `inner`. A server state is unwrapped first."""
    if isinstance(declared, property):
        return property(lambda self: getattr(self.inner, name), doc=declared.__doc__)

    @wraps(declared)
    def ask(self: Any, *arguments: Any, **named: Any) -> Any:
        def known(value: Any) -> Any:
            return self.unwrapped(value) if isinstance(value, ServerState) else value

        return getattr(self.inner, name)(*map(known, arguments), **{key: known(each) for key, each in named.items()})

    @wraps(declared)
    def retime(self: Any, setup: Setup, own: Any) -> Any:
        return replace(own, inner=self.inner.retime(setup, own.inner))

    return retime if name == "retime" else ask
