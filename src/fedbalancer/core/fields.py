"""Ranges of settings and policy fields, declared once on the field.

    w: Annotated[int, Bounds(ge=1)] = 20

`check_fields` checks a dataclass against its declarations. Pydantic models understand `Bounds` too.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from fedbalancer.core.errors import BadSetting


@dataclass(frozen=True)
class Bounds:
    """Range of a number, for use inside `Annotated`.

    Args:
        ge: Smallest allowed value.
        gt: Bound that the value must exceed.
        le: Largest allowed value.
        lt: Bound that the value must stay below.

    Example:
        >>> Bounds(gt=0, le=1).text, Bounds(gt=0, le=1).contains(0.0)
        ('> 0 and <= 1', False)
    """

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    @property
    def text(self) -> str:
        """The range in words."""
        signs = {">=": self.ge, ">": self.gt, "<=": self.le, "<": self.lt}
        return " and ".join(f"{sign} {bound:g}" for sign, bound in signs.items() if bound is not None)

    def contains(self, value: float) -> bool:
        """Whether the value is in the range. Infinity needs a range without an upper bound."""
        return (
            (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
        )

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Add the range to the schema of a number in a pydantic model."""
        bounds = {"ge": self.ge, "gt": self.gt, "le": self.le, "lt": self.lt}
        return {**handler(source), **{name: bound for name, bound in bounds.items() if bound is not None}}


Share = Annotated[float, Bounds(ge=0, le=1)]
NonzeroShare = Annotated[float, Bounds(gt=0, le=1)]
BelowHalf = Annotated[float, Bounds(ge=0, lt=0.5)]
BelowOne = Annotated[float, Bounds(ge=0, lt=1)]
Step = Annotated[float, Bounds(gt=0, le=1000)]
Weight = Annotated[float, Bounds(ge=0, le=1000)]
UpTo100 = Annotated[float, Bounds(ge=0, le=100)]
AtLeastOne = Annotated[float, Bounds(ge=1)]
Multiple = Annotated[float, Bounds(ge=1, le=10**6)]
Seconds = Annotated[float, Bounds(ge=0, le=10**6)]
Count = Annotated[int, Bounds(ge=1, le=10**9)]
Rounds = Annotated[int, Bounds(ge=1, le=10**6)]


@dataclass(frozen=True)
class FieldType:
    """The values that a type annotation allows.

    Args:
        base: `bool`, `int`, `float` or `str`; None for any other type.
        bounds: Range of a number.
        choices: The only allowed values, if there are few.
        optional: Whether None is allowed, which is written `off`.
    """

    base: type | None
    bounds: Bounds = Bounds()
    choices: tuple[Any, ...] = ()
    optional: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the value can be written as text: a number, a word, or true or false."""
        return self.base is not None or bool(self.choices)

    @property
    def text(self) -> str:
        """The allowed values in words."""
        kinds: dict[type | None, str] = {
            bool: "true or false",
            int: "a whole number",
            float: "a number",
            str: "a text",
            None: "a policy",
        }
        words = (
            " or ".join(map(str, self.choices)) if self.choices else f"{kinds[self.base]} {self.bounds.text}".strip()
        )
        return words + ("; off" if self.optional else "")

    def convert(self, value: Any) -> Any:
        """Return the value with the annotated number type: 5.0 as 5 for `int`, 1 as 1.0 for `float`."""
        if self.base is int and isinstance(value, float) and value.is_integer():
            return int(value)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if self.base is float and is_number else value

    def allows(self, value: Any) -> bool:
        """Whether the value has the annotated type and range."""
        if value is None:
            return self.optional or not self.is_plain
        if self.choices:
            return value in self.choices
        if self.base in (int, float):
            kind = Integral if self.base is int else Real
            if isinstance(value, bool) or not isinstance(value, kind) or math.isnan(value):
                return False
            return self.bounds.contains(float(value))
        return self.base is None or isinstance(value, self.base)


def read_type(annotation: Any) -> FieldType:
    """Read a type annotation.

    Args:
        annotation: A plain type, `Literal`, `X | None`, or `Annotated` with `Bounds`.

    Returns:
        What the annotation allows. Other types allow everything.

    Example:
        >>> read_type(Share).text, read_type(Literal["round", "cumulative"]).text, read_type(Count | None).text
        ('a number >= 0 and <= 1', 'round or cumulative', 'a whole number >= 1 and <= 1e+09; off')
    """
    if get_origin(annotation) is Annotated:
        inner, *notes = get_args(annotation)
        bounds = next((note for note in notes if isinstance(note, Bounds)), Bounds())
        return FieldType(read_type(inner).base, bounds)
    if get_origin(annotation) is Literal:
        return FieldType(None, choices=get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        # A function can only be passed from Python.
        options = [each for each in get_args(annotation) if each is not NoneType and get_origin(each) is not Callable]
        if len(options) == 1 and len(get_args(annotation)) == 2:
            inner_type = read_type(options[0])
            optional = NoneType in get_args(annotation)
            return FieldType(inner_type.base, inner_type.bounds, inner_type.choices, optional)
    return FieldType(annotation if annotation in (bool, int, float, str) else None)


def field_types(kind: type) -> dict[str, FieldType]:
    """Return the types of a dataclass's fields by name; empty if they cannot be resolved."""
    return _read_types(kind)


@cache
def _read_types(kind: type) -> dict[str, FieldType]:
    if not is_dataclass(kind):
        return {}
    try:
        hints = get_type_hints(kind, include_extras=True)
    except (NameError, TypeError):
        return {}
    return {each.name: read_type(hints[each.name]) for each in fields(kind) if each.init}


def check_fields(instance: Any) -> None:
    """Check all fields of a dataclass against their annotations.

    Args:
        instance: The dataclass object.

    Raises:
        BadSetting: If a value has the wrong type or is out of its range.
    """
    for name, declared in field_types(type(instance)).items():
        value = getattr(instance, name)
        if not declared.allows(value):
            raise BadSetting(f"{type(instance).__name__}: {name} = {value!r} must be {declared.text}")


def field_meanings(kind: type) -> dict[str, str]:
    """Return the descriptions of a class's fields, from the `Args:` section of its docstring and of its bases.

    Example:
        >>> field_meanings(Bounds)["le"]
        'Largest allowed value.'
    """
    meanings: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        meanings |= _read_args(inspect.cleandoc(base.__doc__ or ""))
    return meanings


def _read_args(docstring: str) -> dict[str, str]:
    """Read the entries of an `Args:` section: `name: Text`, with continuation lines indented further."""
    section = re.search(r"^Args:\n((?:    .*\n?|\n)+)", docstring, flags=re.MULTILINE)
    entries = (
        re.findall(r"^    (\w+): ((?:.*\n?)(?:        .*\n?)*)", section[1], flags=re.MULTILINE) if section else []
    )
    return {name: " ".join(text.split()) for name, text in entries}
