"""The built-in policies by slot, and how a text creates one."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any

from fedbalancer.client import policies
from fedbalancer.core.calls import create_object, load_class, read_call
from fedbalancer.core.contracts import SLOTS, policies_in
from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.fields import field_meanings, field_types
from fedbalancer.core.settings import METHOD_VALUES, short_key
from fedbalancer.methods.names import WAITS, fixed_multiple
from fedbalancer.server import aggregate, clients, deadline, late, model_average, pace, threshold
from fedbalancer.server.server import ServerPolicies

POLICIES: Mapping[str, Mapping[str, type]] = {
    "clients": policies_in(clients, "clients"),
    "deadline": policies_in(deadline, "deadline"),
    "threshold": policies_in(threshold, "threshold"),
    "pace": policies_in(pace, "pace"),
    "aggregate": policies_in(aggregate, "aggregate"),
    "model_average": policies_in(model_average, "model_average"),
    "late": policies_in(late, "late"),
    **policies.KNOWN,
}
"""The built-in policies by slot and name."""


def make_policy(slot: str, text: str) -> Any:
    """Create a policy from a text.

    Args:
        slot: The slot of the policy.
        text: A built-in policy or `package.module:Class`, both with or without keyword arguments. For the deadline also
            `kT` (k times T) and `inf` (wait for all).

    Returns:
        The policy.

    Raises:
        UnknownName: If there is no such slot or built-in policy.
        BadSetting: If the text cannot be read or the policy cannot be created.

    Example:
        >>> make_policy("deadline", ".5T"), make_policy("aggregate", "TrimmedMean(beta=.1)")
        (FixedDeadline(multiple=0.5), TrimmedMean(beta=0.1))
    """
    if not isinstance(text, str):
        raise BadSetting(f"setting {slot} = {text!r} must be a policy, as in {slot}=package.module:Class")
    if slot == "deadline" and (multiple := fixed_multiple(text)) is not None:
        return deadline.FixedDeadline(multiple)
    if slot == "deadline" and text in WAITS:
        return deadline.WaitForShare()
    if slot not in SLOTS or ":" in text.partition("(")[0]:
        return load_policy(slot, text)
    name, arguments = read_call(f"{slot} = {text!r}", text)
    if name in POLICIES[slot]:
        return check_policy_type(slot, text, create_object(f"{slot} = {text!r}", POLICIES[slot][name], arguments))
    if name.isidentifier():
        raise UnknownName(f"policy for slot {slot}:", name, POLICIES[slot])
    return load_policy(slot, text)


def load_policy(slot: str, text: str) -> Any:
    """Import a policy and create it.

    Args:
        slot: The slot of the policy.
        text: `package.module:Class`, or `package.module:Class(first=60)` with keyword arguments.

    Returns:
        The policy.

    Raises:
        UnknownName: If there is no such slot.
        BadSetting: If the class cannot be imported, cannot be created, or is no policy for the slot.
    """
    if slot not in SLOTS:
        raise UnknownName("slot", slot, SLOTS)
    place = f"{slot} = {text!r}"
    path, arguments = read_call(place, text)
    return check_policy_type(slot, text, create_object(place, load_class(place, path), arguments))


def check_policy_type(slot: str, text: str, policy: Any) -> Any:
    """Check that an object is a policy for a slot.

    Args:
        slot: The slot.
        text: The text that names the policy, for error messages.
        policy: The object.

    Returns:
        The policy.

    Raises:
        BadSetting: If it is a class, or not derived from the base class of the slot.
    """
    if inspect.isclass(policy):
        raise BadSetting(f"{slot} = {text} is a class; pass an object of it: {policy.__name__}()")
    if not isinstance(policy, SLOTS[slot]):
        raise BadSetting(f"{slot} = {text!r} is not a policy for that slot: {base_advice(slot, policy)}")
    return policy


def base_advice(slot: str, policy: Any) -> str:
    """Return which base class the class of a policy must derive from.

    Example:
        >>> base_advice("deadline", object())
        'derive object from fedbalancer.core.contracts.DeadlinePolicy'
    """
    return f"derive {type(policy).__name__} from fedbalancer.core.contracts.{SLOTS[slot].__name__}"


def policy_fields() -> list[dict[str, Any]]:
    """List the values of methods and all fields of the built-in policies."""
    rows = [row for kind in (policies.ClientPolicies, ServerPolicies) for row in _describe_fields("", kind)]
    for slot in SLOTS:
        for kind in dict.fromkeys(POLICIES[slot].values()):
            rows += _describe_fields(slot, kind)
    return rows


def _describe_fields(slot: str, kind: type) -> Iterator[dict[str, Any]]:
    types, meanings = field_types(kind), field_meanings(kind)
    for each in fields(kind):
        if each.name in types and types[each.name].is_plain and (slot or each.name in METHOD_VALUES):
            yield {
                "slot": slot,
                "policy": kind.__name__ if slot else "",
                "key": short_key(f"{slot}.{each.name}") if slot else each.name,
                "default": None if each.default is MISSING else each.default,
                "allowed": types[each.name].text,
                "meaning": meanings.get(each.name, ""),
            }


def describe_policy(kind: type) -> str:
    """Return the first sentence of a policy's docstring.

    Example:
        >>> describe_policy(ServerPolicies)
        'One policy per server slot'
    """
    paragraph = " ".join(inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].split())
    return re.split(r"\.(?= |$)", paragraph, maxsplit=1)[0]
