"""Loads policies that are named by a text, and checks that the policies of a method work together."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from fedbalancer.core.calls import read_call
from fedbalancer.core.contracts import SLOTS
from fedbalancer.core.errors import BadSetting, UnknownName


def check_composition(method: Any) -> None:
    """Refuse a method whose policies do not work together, before anything runs.

    A policy that needs the clients' losses (`needs_losses`) needs a summary that releases them. A policy that needs
    counts of local steps (`needs_counts`) needs a summary without privacy. A part of the model needs an aggregator that
    averages each parameter over the clients that trained it. Any policy can refuse others by `refuses`.

    Args:
        method: The `Method`.

    Raises:
        BadSetting: If the policies do not work together; the message says why.
    """
    for slot in SLOTS:
        if why := _find_conflict(method, slot):
            raise BadSetting(f"method {method.name!r} cannot run: {why}")
    if not method.part.is_whole and (why := _find_part_conflict(method)):
        raise BadSetting(f"method {method.name!r} cannot run: {why}")


def _find_part_conflict(method: Any) -> str | None:
    part = type(method.part).__name__
    if not method.aggregate.handles_parts:
        aggregate = type(method.aggregate).__name__
        return f"part {part} trains parts of the model, which {aggregate} does not average; use WeightedMean"
    if not method.compress.is_identity:
        compress = type(method.compress).__name__
        return f"part {part} sends parts of the model, and {compress} encodes whole updates; use no compression"
    return None


def _find_conflict(method: Any, slot: str) -> str | None:
    policy, summary = getattr(method, slot), method.summary
    if policy.needs_losses and not summary.releases_losses:
        return f"{type(policy).__name__} needs the clients' losses, which {type(summary).__name__} does not release"
    if policy.needs_counts and summary.is_private:
        return f"{type(policy).__name__} needs the local steps of clients, which {type(summary).__name__} withholds"
    return str(why) if (why := policy.refuses(method)) else None


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


def load_class(place: str, path: str) -> Any:
    """Import `package.module:Class`.

    Args:
        place: Where the path is given, for error messages.
        path: The module and the name in it.

    Returns:
        The class, or whatever has that name.

    Raises:
        BadSetting: If it cannot be imported.
    """
    module_name, colon, attribute = path.partition(":")
    if not colon:
        raise BadSetting(f"{place} must look like package.module:Class")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # importing a user's module may raise anything
        advice = " (install its package, or put its folder on PYTHONPATH)" if _is_missing(error, module_name) else ""
        kind = "" if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: "
        raise BadSetting(f"{place}: {kind}{error}{advice}") from error


def create_object(place: str, source: Any, arguments: Mapping[str, Any]) -> Any:
    """Create an object of a class.

    Args:
        place: Where the class is named, for error messages.
        source: The class. Anything else is returned unchanged if there are no arguments.
        arguments: Keyword arguments.

    Returns:
        The object.

    Raises:
        BadSetting: If the class refuses the arguments.
    """
    if not inspect.isclass(source) and not arguments:
        return source
    try:
        return source(**arguments)
    except (TypeError, ValueError, BadSetting) as error:
        how = "with these arguments" if arguments else "without arguments"
        raise BadSetting(f"{place} cannot be created {how}: {error}") from error


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


def _is_missing(error: Exception, module_name: str) -> bool:
    return isinstance(error, ModuleNotFoundError) and module_name.startswith(str(error.name))
