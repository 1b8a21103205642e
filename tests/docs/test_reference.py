"""Everything in the API reference, and every built-in policy, documents its parameters in a Google-style docstring."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import griffe
import pytest

from fedbalancer.methods.policy_registry import POLICIES as REGISTRY

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))
TARGETS = sorted({name for page in PAGES for name in re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE)})
POLICIES = sorted({f"{it.__module__}.{it.__qualname__}" for slot in REGISTRY.values() for it in slot.values()})


@cache
def package() -> griffe.Object:
    logging.getLogger("griffe").setLevel(logging.ERROR)
    loaded = griffe.load("fedbalancer", search_paths=[ROOT / "src"])
    assert isinstance(loaded, griffe.Object)
    return loaded


def members(thing: griffe.Object | griffe.Alias) -> Iterator[griffe.Object | griffe.Alias]:
    """Yield a documented object and its public members, as the site shows them."""
    yield thing
    if thing.is_module or thing.is_class:
        for name, member in thing.members.items():
            if name.startswith("_") or (member.is_alias and not thing.is_module):
                continue
            if member.is_alias and (thing.exports is None or name not in thing.exports):
                continue
            if member.is_function or member.is_class or member.is_module:
                yield from members(member)


def undocumented(thing: griffe.Object | griffe.Alias) -> list[str]:
    """Return the parameters of a function or class that its docstring does not describe; "" for no docstring."""
    if thing.is_module or overrides(thing):
        return []
    if thing.docstring is None:
        return [""]
    needed = [each.name for each in parameters(thing) if each.name not in ("self", "cls")]
    texts = [it.docstring for it in (thing, *(thing.mro() if thing.is_class else ())) if it.docstring is not None]
    described = {
        item.name.lstrip("*")
        for text in texts
        for section in griffe.parse_google(text, warnings=False)
        if section.kind in (griffe.DocstringSectionKind.parameters, griffe.DocstringSectionKind.attributes)
        for item in section.value
    }
    if thing.is_class:
        described |= {name for name, member in thing.all_members.items() if member.is_attribute and member.docstring}
    return [name for name in needed if name not in described]


def overrides(thing: griffe.Object | griffe.Alias) -> bool:
    """Return whether a method is documented by a base class."""
    return bool(
        thing.is_function
        and thing.parent is not None
        and thing.parent.is_class
        and any(thing.name in base.members for base in thing.parent.mro())
    )


def parameters(thing: griffe.Object | griffe.Alias) -> list[griffe.Parameter]:
    if not thing.is_class:
        return list(thing.parameters) if thing.is_function and "property" not in thing.labels else []
    return list(thing.parameters)  # of __init__, or a dataclass's fields


@pytest.mark.parametrize("target", TARGETS)
def test_every_parameter_of_the_reference_is_documented(target: str) -> None:
    thing = package()[target.removeprefix("fedbalancer.")]
    missing = {member.path: names for member in members(thing) if (names := undocumented(member))}
    assert not missing, f"add an Args section: {missing}"


@pytest.mark.parametrize("policy", POLICIES)
def test_every_field_of_a_policy_is_documented(policy: str) -> None:
    """Its methods are documented once, by the base class of its slot."""
    assert undocumented(package()[policy.removeprefix("fedbalancer.")]) == [], "add an Args section"


def test_the_reference_and_the_policies_were_found() -> None:
    assert len(TARGETS) > 15
    assert len(POLICIES) > 40
