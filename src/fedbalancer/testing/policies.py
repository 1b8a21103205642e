"""check_policy(): the contract that every policy must fulfil, custom policies included."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

from fedbalancer.core.contracts import SLOTS
from fedbalancer.core.errors import UnknownName
from fedbalancer.core.wrapping import questions
from fedbalancer.methods.policy_registry import base_advice
from fedbalancer.testing.checked import Checked, PolicyError
from fedbalancer.testing.slot_checks import CLIENT_CHECKS, SERVER_CHECKS

SLOT_CHECKS = {**SERVER_CHECKS, **CLIENT_CHECKS}
"""A check for every slot; it raises `PolicyError` if a policy breaks the contract."""
SIMILAR = 0.85
"""Similarity of two names (0 to 1) from which on one is taken for a misspelling of the other."""


def check_policy(policy: Any, slot: str | None = None) -> str:
    """Check a policy on small made-up runs.

    Every policy derives from the base class of its slot, is deterministic, changes neither its arguments nor itself,
    draws from no global generator, and can be copied and pickled. `fedbalancer.core.contracts` documents what each slot
    requires in addition.

    Args:
        policy: The policy to check.
        slot: The slot to check it for. Default: the slot whose base class it derives from.

    Returns:
        The slot.

    Raises:
        PolicyError: If the policy breaks the contract.

    >>> from fedbalancer.server.deadline import FixedDeadline
    >>> check_policy(FixedDeadline(1.5))
    'deadline'
    """
    if slot is not None and slot not in SLOTS:
        raise UnknownName("slot", slot, SLOTS)
    if inspect.isclass(policy):
        raise PolicyError(f"{policy.__name__} is a class; give a policy made from it, as in {policy.__name__}()")
    slot = _find_slot(policy) if slot is None else slot
    if not isinstance(policy, SLOTS[slot]):
        raise PolicyError(f"{type(policy).__name__} is not a policy for {slot}: {base_advice(slot, policy)}")
    _check_answers(policy, slot)
    _check_names(policy, slot)
    SLOT_CHECKS[slot](Checked.of(policy))
    return slot


def _find_slot(policy: Any) -> str:
    """Return the slot whose base class the policy derives from."""
    fitting = [slot for slot, base in SLOTS.items() if isinstance(policy, base)]
    if len(fitting) == 1:
        return fitting[0]
    who = type(policy).__name__
    if fitting:
        raise PolicyError(f"{who} fits several slots: {', '.join(fitting)}; say which with slot=")
    bases = ", ".join(f"{base.__name__} ({slot})" for slot, base in SLOTS.items())
    raise PolicyError(f"{who} must derive from a base class of fedbalancer.core.contracts: {bases}")


def _check_answers(policy: Any, slot: str) -> None:
    """Methods must take the declared arguments; a property must not be a method."""
    who = type(policy).__name__
    for name, declared in questions(SLOTS[slot]).items():
        answer = getattr(policy, name)
        if isinstance(declared, property):
            if callable(answer):
                raise PolicyError(f"{who}.{name} must be a value or a property, not a method")
            continue
        parameters = list(inspect.signature(declared).parameters)[1:]
        try:
            inspect.signature(answer).bind(*parameters)
        except TypeError:
            raise PolicyError(f"{who}.{name}() must take ({', '.join(parameters)})") from None


def _check_names(policy: Any, slot: str) -> None:
    """Refuse an attribute that looks like a misspelt question: nobody would ever ask it."""
    declared = questions(SLOTS[slot])
    for name in sorted({*dir(type(policy)), *getattr(policy, "__dict__", ())} - declared.keys()):
        if name.startswith("_"):
            continue
        if similar := difflib.get_close_matches(name, declared, n=1, cutoff=SIMILAR):
            raise PolicyError(
                f"{type(policy).__name__}.{name} is never used; did you mean {similar[0]}, which "
                f"{SLOTS[slot].__name__} declares?"
            )
