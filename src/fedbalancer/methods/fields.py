"""Fields of a method's policies by address: `clients.alpha`, or a short name such as `w` for `pace.w`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from fedbalancer.core.contracts import SLOTS
from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.fields import FieldType, field_types
from fedbalancer.core.settings import METHOD_VALUES, SHORT_NAMES, Settings, short_key
from fedbalancer.core.wrapping import Wrapping
from fedbalancer.methods.composition import Method


def has_field(method: Method, key: str) -> bool:
    """Whether the policies of a method have the field at an address.

    Example:
        >>> has_field(Method("mine"), "deadline.share"), has_field(Method("mine"), "w"), has_field(Method("mine"), "mu")
        (True, False, True)
    """
    slot, field = split_address(key)
    return not slot or any(field in _plain_fields(policy) for policy in _wrapped(getattr(method, slot)))


def with_fields(method: Method, values: Mapping[str, Any], place: str) -> Method:
    """Change fields of a method's policies.

    Args:
        method: The method.
        values: Values by address. A field of a wrapped policy has the address of a field of the wrapping policy.
        place: Where the values are given, for error messages.

    Returns:
        The method with new policies.

    Raises:
        UnknownName: If a policy has no such field.
        BadSetting: If a value is not allowed.

    Example:
        >>> with_fields(Method("mine"), {"deadline.share": 0.8, "mu": 0.1}, "here").deadline
        WaitForShare(share=0.8)
    """
    for key, value in values.items():
        slot, field = split_address(key)
        if slot and not has_field(method, key):
            raise unknown_field(key, [method], place)
        if slot:
            method = method.with_policies(**{slot: _replace(getattr(method, slot), field, value, f"{place}{key}")})
        else:
            side = method.client if field in field_types(type(method.client)) else method.server
            declared = field_types(type(side))[field]
            method = method.with_policies(**{field: _convert(declared, value, f"{place}{key}")})
    return method


def check_settings_used(settings: Settings, methods: Iterable[Method]) -> None:
    """Refuse settings of policy fields that none of these methods has.

    Args:
        settings: The settings of all methods.
        methods: The methods that run with them.

    Raises:
        UnknownName: If no policy of any method has the field.
    """
    candidates = list(methods)
    for key in settings.policies:
        if key not in SLOTS and not any(has_field(method, key) for method in candidates):
            raise unknown_field(key, candidates, "setting ")


def unknown_field(key: str, methods: Iterable[Method], place: str) -> UnknownName | BadSetting:
    """Return the error for a field that none of these methods has; it names their policies and fields."""
    slot, field = split_address(key)
    policies = [policy for method in methods for policy in _wrapped(getattr(method, slot))]
    owners = " or ".join(dict.fromkeys(type(policy).__name__ for policy in policies))
    known = sorted({name for policy in policies for name in _plain_fields(policy)})
    if not known:
        return BadSetting(f"{place}{key}: the policy in slot {slot} is {owners}, which has no fields to set")
    return UnknownName(f"field of {owners} in {place}{key}:", field, known)


def describe_settings(settings: Settings, method: Method) -> dict[str, Any]:
    """Return the resolved settings of a run, with the policies of its method and all their fields by address."""
    resolved = {key: value for key, value in settings.model_dump(mode="json").items() if key != "policies"}
    resolved |= {name: getattr(method, name) for name in METHOD_VALUES}
    for slot in SLOTS:
        policies = list(_wrapped(getattr(method, slot)))
        resolved[slot] = " of ".join(type(policy).__name__ for policy in policies)
        for policy in reversed(policies):
            fields = {f"{slot}.{name}": getattr(policy, name) for name in _plain_fields(policy)}
            resolved |= {short_key(address): _plain_value(value) for address, value in fields.items()}
    return resolved


def split_address(key: str) -> tuple[str, str]:
    """Split an address or a short name into slot and field; a value of the method itself has no slot.

    Example:
        >>> split_address("w"), split_address("clients.alpha"), split_address("mu")
        (('pace', 'w'), ('clients', 'alpha'), ('', 'mu'))
    """
    slot, dot, field = SHORT_NAMES.get(key, key).partition(".")
    return (slot, field) if dot else ("", slot)


def _wrapped(policy: Any) -> Iterator[Any]:
    """Yield a policy and those that it wraps."""
    yield policy
    while isinstance(policy, Wrapping):
        policy = policy.inner
        yield policy


def _plain_fields(policy: Any) -> dict[str, FieldType]:
    return {name: declared for name, declared in field_types(type(policy)).items() if declared.is_plain}


def _plain_value(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _replace(policy: Any, field: str, value: Any, place: str) -> Any:
    """Replace a field of a policy, or of the policy it wraps."""
    if field not in _plain_fields(policy):
        return replace(policy, inner=_replace(policy.inner, field, value, place))
    converted = _convert(_plain_fields(policy)[field], value, place)
    try:
        return replace(policy, **{field: converted})
    except (TypeError, ValueError, BadSetting) as error:
        raise BadSetting(f"{place} = {value!r}: {error}") from error


def _convert(declared: FieldType, value: Any, place: str) -> Any:
    converted = declared.convert(value)
    if not declared.allows(converted):
        raise BadSetting(f"{place} = {value!r} must be {declared.text}")
    return converted
