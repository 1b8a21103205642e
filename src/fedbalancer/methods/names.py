"""Method names: `base[+modifier|-part]...[key=value,...]`, such as `fedbalancer[w=5,p=.75]`.

Brackets hold settings of this method alone: settings of the run, fields of its policies, and whole policies. Every
method has one canonical name: settings of the run come first, then the paper's symbols, other values, fields and
policies by slot. Numbers are as short as possible, and there are no spaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from fedbalancer.core.calls import read_call, write_call
from fedbalancer.core.contracts import SLOTS
from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.settings import (
    METHOD_VALUES,
    RUN_KEYS,
    SHORT_NAMES,
    is_policy_key,
    known_keys,
    parse_value,
    resolve,
    short_key,
)

LONGEST_BYTES = 200
"""Maximum length of a name: it is also the name of a folder, and is sent to clients."""
SHARED = {
    **dict.fromkeys(
        ("rounds", "eval_every", "eval_every_s", "eval_clients", "checkpoint_s"), "how methods are measured"
    ),
    "save_exact_losses": "the content of the run folder",
    **dict.fromkeys(("latency", "window_s", "network_floor", "device_spread", "availability"), "the devices"),
    "label_noise": "the data",
    "attacks": "the clients",
}
"""Settings that all methods of a comparison share, and what they describe."""
WAITS = ("inf", "wait")
"""Texts for a deadline that waits for all clients; the first one is canonical."""
_FIXED = re.compile(r"(\d+\.?\d*|\.\d+)(e[+-]?\d+)?[tT]")
_WORD = re.compile(r"[\w.+-]+")
_PAIRS = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True)
class MethodName:
    """A method name in its parts.

    Args:
        stem: Base and modifiers.
        settings: Settings of the run in brackets, checked.
        fields: Values of policy fields in brackets, by address or short name. The policies check them.
        slots: Whole policies in brackets, as text.
    """

    stem: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    slots: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        inside = [f"{key}={value_text(value)}" for key, value in {**self.settings, **self.fields}.items()]
        inside += [f"{slot}={text}" for slot, text in self.slots.items()]
        return f"{self.stem}[{','.join(inside)}]" if inside else self.stem


def canonical_name(name: str) -> str:
    """Return the canonical form of a method name.

    Example:
        >>> canonical_name("fedbalancer[ p = 0.75, pace.w=5 ]"), canonical_name("fedavg[deadline=0.50t]")
        ('fedbalancer[w=5,p=.75]', 'fedavg[deadline=.5T]')
    """
    return str(parse_method_name(name))


def parse_method_name(name: str) -> MethodName:
    """Split a method name into its parts.

    Args:
        name: The name as typed.

    Returns:
        The parts in canonical order. Base, modifiers and policy fields are not checked; `method` checks them.

    Raises:
        UnknownName: If a key in brackets is no setting and no slot.
        BadSetting: If the name is malformed, or a setting of the run has a value that is not allowed.
    """
    name = name.strip()
    check_name(name)
    stem, bracket, rest = name.partition("[")
    if not bracket:
        return MethodName(stem)
    if not rest.endswith("]"):
        raise BadSetting(f"method {name!r} must end with its settings in brackets, as in {stem}[w=5,p=.75]")
    values: dict[str, Any] = {}
    for assignment in split_outside(rest[:-1]):
        typed, equals, text = (part.strip() for part in assignment.partition("="))
        if not (typed and equals and text):
            raise BadSetting(f"method {name!r}: {assignment.strip()!r} in brackets must look like key=value")
        key = short_key(typed)
        if key in values:
            raise BadSetting(f"method {name!r}: {key} is given twice")
        values[key] = _parse_entry(name, key, text)
    fields = [key for key in values if is_policy_key(key) and key not in SLOTS]
    parsed = MethodName(
        stem.strip(),
        settings=_select(values, RUN_KEYS),
        fields=_select(values, [*SHORT_NAMES, *METHOD_VALUES, *sorted(fields, key=_address_order)]),
        slots=_select(values, SLOTS),
    )
    check_name(str(parsed))
    return parsed


def with_slots(name: str, slots: Mapping[str, str]) -> str:
    """Add policies to a method name, for slots that the name does not set itself.

    Example:
        >>> with_slots("fedavg+1t", {"deadline": "my.module:Mine(first=60)"})
        'fedavg+1t[deadline=my.module:Mine(first=60)]'
        >>> with_slots("fedbalancer[work=b:B]", {"work": "c:C"})
        'fedbalancer[work=b:B]'
    """
    parsed = parse_method_name(name)
    added = {slot: _canonical_policy(name, slot, text) for slot, text in slots.items()}
    longer = str(replace(parsed, slots=_select({**added, **parsed.slots}, SLOTS)))
    check_name(longer)
    return longer


def with_choices(parsed: MethodName, choices: Mapping[str, Any]) -> str:
    """Return the name of a method with policy objects in some slots.

    A policy appears as the text that creates it, or by its class if that text is too long or not plain, or as "own" if
    the class name is too long as well.
    """
    values = {key: value_text(value) for key, value in choices.items() if key not in SLOTS}
    for text_of in (_policy_text, lambda policy: type(policy).__name__, lambda policy: "own"):
        slots = {**parsed.slots, **{slot: text_of(choices[slot]) for slot in SLOTS if slot in choices}}
        name = str(replace(parsed, slots={**_select(slots, SLOTS), **values}))
        if len(name.encode(errors="replace")) <= LONGEST_BYTES:
            break
    return name


def _policy_text(policy: Any) -> str:
    """Return the text that creates a policy, or the name of its class if there is no such text."""
    kind = type(policy)
    text = kind.__name__ + repr(policy).removeprefix(kind.__qualname__)
    if len(text) > LONGEST_BYTES:
        return kind.__name__
    try:
        written = _canonical_policy("", "", text)
        check_name(written)
    except BadSetting:
        return kind.__name__
    return written if written.partition("(")[0] == kind.__name__ else kind.__name__


def check_name(name: str) -> None:
    """Refuse a name that cannot be the name of a folder.

    Raises:
        BadSetting: If the name has a slash or a control character, or is too long.
    """
    if "/" in name or "\\" in name or not name.isprintable() or name in (".", ".."):
        raise BadSetting(f"method {name!r}: a name is also a folder, so it has no slash and no control character")
    if len(name.encode(errors="replace")) > LONGEST_BYTES:
        raise BadSetting(f"method {name[:60] + '...'!r}: a name has at most {LONGEST_BYTES} bytes")


def split_names(text: str) -> list[str]:
    """Split a comma-separated list of method names. Commas in brackets do not separate.

    Example:
        >>> split_names("fedavg+1t, fedbalancer[w=5,p=.75]")
        ['fedavg+1t', 'fedbalancer[w=5,p=.75]']
    """
    return [name.strip() for name in split_outside(text) if name.strip()]


def split_outside(text: str) -> list[str]:
    """Split a text at commas outside of brackets, parentheses and quotes.

    Raises:
        BadSetting: If a bracket or quote is not closed.
    """
    cuts = [-1, *_commas(text), len(text)]
    return [text[start + 1 : end] for start, end in pairwise(cuts)]


def fixed_multiple(text: str) -> float | None:
    """Return k of a deadline `kT`, or None if the text is no such deadline.

    Example:
        >>> fixed_multiple(".5T"), fixed_multiple("60")
        (0.5, None)
    """
    return float(text[:-1]) if _FIXED.fullmatch(text) else None


def _commas(text: str) -> Iterator[int]:
    opened: list[str] = []
    quote = ""
    for place, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in _PAIRS.values():
            opened.append(character)
        elif character in _PAIRS and (not opened or opened.pop() != _PAIRS[character]):
            raise BadSetting(f"{text!r} has a {character!r} that closes nothing")
        elif character == "," and not opened:
            yield place
    if opened or quote:
        raise BadSetting(f"{text!r} has a {quote or opened[-1]!r} that is not closed")


def _parse_entry(name: str, key: str, text: str) -> Any:
    """Parse the value of a key in brackets: a policy as text, a policy field as it is, or a checked setting."""
    if key in SLOTS:
        return _canonical_policy(name, key, text)
    if key in SHARED:
        raise BadSetting(
            f"method {name!r}: {key} describes {SHARED[key]}, so it applies to all methods; set it with --set {key}=..."
        )
    value = parse_value(text)
    if is_policy_key(key):
        if not isinstance(value, bool | int | float | str | None) or not _WORD.fullmatch(value_text(value)):
            raise BadSetting(f"method {name!r}: {key} = {text} must be a number or a word")
        return value
    if key not in RUN_KEYS:
        raise UnknownName(f"setting in method {name!r}:", key, [each for each in known_keys() if each not in SHARED])
    try:
        return getattr(resolve({key: value}), key)
    except BadSetting as error:
        raise BadSetting(f"method {name!r}: {error}") from None


def _canonical_policy(name: str, slot: str, text: str) -> str:
    """Return the canonical text of a policy: `kT` or `inf` for a deadline, otherwise its name with sorted arguments."""
    multiple = fixed_multiple(text)
    if slot == "deadline" and multiple is not None:
        if not 0 < multiple <= 1000:
            raise BadSetting(f"method {name!r}: deadline={text} must be over 0 and at most 1000 T")
        return f"{value_text(multiple)}T"
    if slot == "deadline" and text in WAITS:
        return WAITS[0]
    return write_call(*read_call(f"method {name!r}: {slot}={text}", text))


def _address_order(key: str) -> tuple[int, str]:
    slot = key.partition(".")[0]
    return (list(SLOTS).index(slot) if slot in SLOTS else -1, key)


def _select(values: Mapping[str, Any], order: Iterable[str]) -> dict[str, Any]:
    return {key: values[key] for key in order if key in values}


def value_text(value: Any) -> str:
    """Return a value as it appears in a name.

    Example:
        >>> value_text(0.75), value_text(1.0), value_text(None)
        ('.75', '1', 'off')
    """
    if value is None:
        return "off"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return re.sub(r"^(-?)0\.", r"\1.", repr(value).removesuffix(".0"))
    return str(value)
