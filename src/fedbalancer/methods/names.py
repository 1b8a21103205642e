"""How methods are spelt: `base[+modifier|-part]...[key=value,...]`, such as `fedbalancer[w=5,p=.75]`.

What stands in the brackets are settings of this method alone, and policies for its slots. Every method has one name:
keys in the order of the settings (the paper's), then slots; numbers as short as they can be; no spaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from fedbalancer.core.contracts import SLOTS
from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.settings import Settings, parse_value, resolve
from fedbalancer.methods.slots import read_call

LONGEST_BYTES = 200
"""Of a name: it is also a folder's, and travels to clients."""
SHARED = {
    **dict.fromkeys(
        ("rounds", "eval_every", "eval_every_s", "eval_clients", "checkpoint_s"), "how all methods are measured"
    ),
    "save_exact_losses": "what a run folder holds",
    **dict.fromkeys(("latency", "window_s", "network_floor", "device_spread", "availability"), "what the devices are"),
    "label_noise": "what the data are",
    "attacks": "who the clients are",
}
"""Settings that are no method's own, and what they say."""
_FIXED = re.compile(r"(\d+\.?\d*|\.\d+)(e[+-]?\d+)?[tT]")
WAITS = ("inf", "wait")
_PAIRS = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True)
class MethodName:
    """A method's name in its parts: base and modifiers, settings in brackets (checked), and policies for slots."""

    stem: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    slots: Mapping[str, str] = field(default_factory=dict)

    @property
    def layer(self) -> dict[str, Any]:
        """What the brackets add to the settings of a run."""
        return {**self.settings, **({"slots": dict(self.slots)} if self.slots else {})}

    def __str__(self) -> str:
        inside = [f"{key}={value_text(value)}" for key, value in self.settings.items()]
        inside += [f"{slot}={text}" for slot, text in self.slots.items()]
        return f"{self.stem}[{','.join(inside)}]" if inside else self.stem


def canonical_name(name: str) -> str:
    """The one spelling of a method's name.

    >>> one_name("fedbalancer[ p = 0.75, w=5 ]"), one_name("fedavg[deadline=0.50t]")
    ('fedbalancer[w=5,p=.75]', 'fedavg[deadline=.5T]')
    """
    return str(parse_method_name(name))


def parse_method_name(name: str) -> MethodName:
    """A name in its parts, with every setting in brackets checked; base and modifiers are left to `method`."""
    name = name.strip()
    check_name(name)
    stem, bracket, rest = name.partition("[")
    if not bracket:
        return MethodName(stem)
    if not rest.endswith("]"):
        raise BadSetting(f"method {name!r} must end with its settings in brackets, as in {stem}[w=5,p=.75]")
    settings: dict[str, Any] = {}
    slots: dict[str, str] = {}
    for assignment in split_outside(rest[:-1]):
        key, equals, text = (part.strip() for part in assignment.partition("="))
        if not (key and equals and text):
            raise BadSetting(f"method {name!r}: {assignment.strip()!r} in brackets must look like key=value")
        if key in settings or key in slots:
            raise BadSetting(f"method {name!r}: {key} is given twice")
        if key in SLOTS:
            slots[key] = _policy(name, key, text)
        else:
            settings[key] = _setting(name, key, text)
    found = MethodName(stem.strip(), _ordered(settings, Settings.model_fields), _ordered(slots, SLOTS))
    check_name(str(found))
    return found


def with_slots(name: str, slots: Mapping[str, str]) -> str:
    """The name of the method with these policies too, where it names none for their slots itself.

    >>> with_slots("fedavg+1t", {"deadline": "my.module:Mine(first=60)"}), with_slots("a[work=b:B]", {"work": "c:C"})
    ('fedavg+1t[deadline=my.module:Mine(first=60)]', 'a[work=b:B]')
    """
    for slot in slots:
        if slot not in SLOTS:
            raise UnknownName("slot", slot, SLOTS)
    own = parse_method_name(name)
    added = {slot: _policy(name, slot, text) for slot, text in slots.items()}
    found = str(MethodName(own.stem, own.settings, _ordered({**added, **own.slots}, SLOTS)))
    check_name(found)
    return found


def with_choices(spelling: MethodName, choices: Mapping[str, Any]) -> str:
    """The name of a method some of whose choices are objects: they stand in it as they would be written, or by their
    class alone where that is no plain text or too long, or as "own" where even that is."""
    others = {key: value_text(value) for key, value in choices.items() if key not in SLOTS}
    for text_of in (_as_written, lambda policy: type(policy).__name__, lambda policy: "own"):
        slots = {**spelling.slots, **{slot: text_of(choices[slot]) for slot in SLOTS if slot in choices}}
        name = str(MethodName(spelling.stem, spelling.settings, {**_ordered(slots, SLOTS), **others}))
        if len(name.encode(errors="replace")) <= LONGEST_BYTES:
            break
    return name


def _as_written(policy: Any) -> str:
    kind = type(policy)
    text = kind.__name__ + repr(policy).removeprefix(kind.__qualname__)
    if len(text) > LONGEST_BYTES:
        return kind.__name__
    try:
        written = _policy("", "", text)
        check_name(written)
    except BadSetting:
        return kind.__name__
    return written if written.partition("(")[0] == kind.__name__ else kind.__name__


def check_name(name: str) -> None:
    """Refuse a name that cannot be a folder's."""
    if "/" in name or "\\" in name or not name.isprintable() or name in (".", ".."):
        raise BadSetting(f"method {name!r}: a name is also a folder's, so it has no slash and no control character")
    if len(name.encode(errors="replace")) > LONGEST_BYTES:
        raise BadSetting(f"method {name[:60] + '...'!r}: a name takes at most {LONGEST_BYTES} bytes")


def split_names(text: str) -> list[str]:
    """The names in a list with commas, of which those in brackets divide nothing.

    >>> split_names("fedavg+1t, fedbalancer[w=5,p=.75]")
    ['fedavg+1t', 'fedbalancer[w=5,p=.75]']
    """
    return [name.strip() for name in split_outside(text) if name.strip()]


def split_outside(text: str) -> list[str]:
    """The parts between commas outside of brackets, parentheses and quotes."""
    cuts = [-1, *_commas(text), len(text)]
    return [text[start + 1 : end] for start, end in pairwise(cuts)]


def fixed_multiple(text: str) -> float | None:
    """The k of a deadline of `kT`, if the text says one.

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


def _setting(name: str, key: str, text: str) -> Any:
    if key in SHARED:
        raise BadSetting(
            f"method {name!r}: {key} says {SHARED[key]}, so it is not one method's own; give it by --set {key}=..."
        )
    if key == "slots":
        raise BadSetting(f"method {name!r}: write the slot itself, as in deadline=package.module:Class")
    if key not in Settings.model_fields:
        raise UnknownName(f"setting in method {name!r}:", key, [*(Settings.model_fields.keys() - SHARED), *SLOTS])
    try:
        return getattr(resolve({key: parse_value(text)}), key)
    except BadSetting as error:
        raise BadSetting(f"method {name!r}: {error}") from None


def _policy(name: str, slot: str, text: str) -> str:
    """The one spelling of what stands in a slot: `kT` or `inf` as a deadline, a policy's name, or package.module:Class
    with its arguments."""
    multiple = fixed_multiple(text)
    if slot == "deadline" and multiple is not None:
        if not 0 < multiple <= 1000:
            raise BadSetting(f"method {name!r}: deadline={text} must be over 0 and at most 1000 T")
        return f"{value_text(multiple)}T"
    if slot == "deadline" and text in WAITS:
        return WAITS[0]
    path, arguments = read_call(f"method {name!r}: {slot}={text}", text)
    given = ",".join(f"{key}={arguments[key]!r}" for key in sorted(arguments))
    return f"{path}({given})" if given else path


def _ordered(found: Mapping[str, Any], order: Mapping[str, Any]) -> dict[str, Any]:
    return {key: found[key] for key in order if key in found}


def value_text(value: Any) -> str:
    """A checked value as it stands in a name.

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
