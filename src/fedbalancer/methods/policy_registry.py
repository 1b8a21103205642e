"""The policies of this project by slot, for those who name one in place of making it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedbalancer.client import policies
from fedbalancer.core.contracts import SLOTS
from fedbalancer.core.errors import UnknownName
from fedbalancer.methods.names import WAITS, fixed_multiple
from fedbalancer.methods.slots import build_policy, checked, load_policy, read_call
from fedbalancer.server import aggregate, clients, deadline, late, model_average, pace, threshold


def _classes(module: Any) -> dict[str, type]:
    """The policies that a package offers, without its functions and states."""
    found = {name: getattr(module, name) for name in module.__all__}
    return {name: it for name, it in found.items() if isinstance(it, type) and not name.endswith("State")}


KNOWN: Mapping[str, Mapping[str, type]] = {
    "clients": _classes(clients),
    "deadline": _classes(deadline),
    "threshold": _classes(threshold),
    "pace": _classes(pace),
    "aggregate": _classes(aggregate),
    "model_average": _classes(model_average),
    "late": _classes(late),
    **policies.KNOWN,
}


def policy(slot: str, text: str) -> Any:
    """What a text puts into a slot: `package.module:Class` of one's own, the name of a policy of ours, both with or
    without keyword arguments; for the deadline also `kT`, k times T, and `inf`, which waits for all.

    >>> policy("deadline", ".5T"), policy("aggregate", "TrimmedMean(beta=.1)")
    (FixedDeadline(multiple=0.5), TrimmedMean(beta=0.1))
    """
    if slot == "deadline" and (multiple := fixed_multiple(text)) is not None:
        return deadline.FixedDeadline(multiple)
    if slot == "deadline" and text in WAITS:
        return deadline.WaitForShare()
    if slot not in SLOTS or ":" in text.partition("(")[0]:
        return load_policy(slot, text)
    name, arguments = read_call(f"slots.{slot} = {text!r}", text)
    if name in KNOWN[slot]:
        return checked(slot, text, build_policy(slot, text, KNOWN[slot][name], arguments))
    if name.isidentifier():
        raise UnknownName(f"policy for slot {slot}:", name, KNOWN[slot])
    return load_policy(slot, text)
