"""check_policy(): the contract that any policy must pass, the user's own included."""

from __future__ import annotations

import inspect
from typing import Any

from fedbalancer.core.contracts import SLOTS, Stateless
from fedbalancer.core.errors import UnknownName
from fedbalancer.methods.slots import lacking, needed
from fedbalancer.testing.checked import Checked, PolicyError
from fedbalancer.testing.client_promises import CLIENT_PROMISES
from fedbalancer.testing.server_promises import SERVER_PROMISES

PROMISES = {**SERVER_PROMISES, **CLIENT_PROMISES}
"""What each slot promises, as a function that raises `PolicyError` where a policy does not keep it."""


def check_policy(policy: Any, slot: str | None = None) -> str:
    """Try a policy on small made-up states; returns the slot that it was tried in.

    Every policy has its slot's methods, is deterministic, changes neither its arguments nor itself, draws from no
    global generator, and survives deep copies and pickling. What a slot promises beyond this is said in `protocols`.
    The slot is found by the policy's methods where it is not given. A broken promise raises `PolicyError`.

    >>> from fedbalancer.server.deadline import FixedDeadline
    >>> check_policy(FixedDeadline(1.5))
    'deadline'
    """
    if slot is not None and slot not in SLOTS:
        raise UnknownName("slot", slot, SLOTS)
    if inspect.isclass(policy):
        raise PolicyError(f"{policy.__name__} is a class; give a policy made from it, as in {policy.__name__}()")
    slot = slot if slot is not None else _slot_of(policy)
    _check_methods(policy, slot)
    PROMISES[slot](Checked.of(policy))
    return slot


def _slot_of(policy: Any) -> str:
    """The one slot whose methods the policy has. Every server policy has those of a pace, so that comes last."""
    fitting = [slot for slot in SLOTS if all(callable(getattr(policy, name, None)) for name in needed(slot))]
    fitting = [slot for slot in fitting if slot != "pace"] or fitting
    who = type(policy).__name__
    if fitting == ["pace"] and type(policy).observe is Stateless.observe:
        fitting = []  # what it has of a pace is only what all others have of one too
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise PolicyError(f"{who} fits several slots: {', '.join(fitting)}; say which with slot=")
    needs = "; ".join(f"{slot}: {', '.join(needed(slot))}" for slot in SLOTS)
    raise PolicyError(
        f"{who} has the methods of no slot ({needs}); fedbalancer.core.contracts.Stateless brings init, observe"
    )


def _check_methods(policy: Any, slot: str) -> None:
    who = type(policy).__name__
    for name in needed(slot):
        found = getattr(policy, name, None)
        if not callable(found):
            raise PolicyError(f"{who} is no policy for {slot}; {lacking(slot, policy)}")
        parameters = list(inspect.signature(getattr(SLOTS[slot], name)).parameters)[1:]
        try:
            inspect.signature(found).bind(*parameters)
        except TypeError:
            raise PolicyError(f"{who}.{name}() must take ({', '.join(parameters)})") from None
