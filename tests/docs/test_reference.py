"""Everything in the API reference, and every built-in policy, documents its parameters in a Google-style docstring."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import griffe
import pytest

import fedbalancer as fb
from fedbalancer.methods.policy_registry import POLICIES as REGISTRY

ROOT = Path(__file__).parents[2]


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "docs" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = _script()
TARGETS = reference.targets()
POLICIES = sorted({f"{it.__module__}.{it.__qualname__}" for slot in REGISTRY.values() for it in slot.values()})


@pytest.mark.parametrize("page", sorted(path.name for path in reference.PAGES.glob("*.md")))
def test_the_pages_are_written_from_the_docstrings(page: str) -> None:
    path = reference.PAGES / page
    assert reference.rewrite(path.read_text(), path) == path.read_text(), "run: python scripts/docs/reference.py"


def test_every_public_name_has_its_place() -> None:
    text = (reference.PAGES / "index.md").read_text()
    assert [name for name in fb.__all__ if f"\n## fb.{name}\n" not in text and f"\n### {name}\n" not in text] == []


def test_a_directive_becomes_a_block_with_signature_table_and_example(tmp_path: Path) -> None:
    page = "# Mine\n\n::: fedbalancer.data.load_task\n    options:\n      heading: fb.load_task\n\nAfter.\n"
    text = reference.rewrite(page, reference.PAGES / "mine.md")
    assert "<!-- api: fedbalancer.data.load_task, fb.load_task -->" in text
    assert "## fb.load_task\n" in text
    assert "    scale: str = 'small',\n" in text
    assert "| `users` | `int or None` | `None` | Number of training clients. None: all. |" in text
    assert "```pycon\n>>> load_task" in text
    assert text.endswith("\nAfter.\n")
    assert reference.rewrite(text, reference.PAGES / "mine.md") == text


def test_defaults_are_values_and_types_are_plain() -> None:
    index, flower = ((reference.PAGES / name).read_text() for name in ("index.md", "flower.md"))
    assert "| `epochs` | `int` | `5` |" in index
    assert "| `keep` | `int` | `2` |" in flower
    assert "Bounds(" not in index


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
    thing = reference.find(target)
    missing = {member.path: names for member in members(thing) if (names := undocumented(member))}
    assert not missing, f"add an Args section: {missing}"


@pytest.mark.parametrize("policy", POLICIES)
def test_every_field_of_a_policy_is_documented(policy: str) -> None:
    """Its methods are documented once, by the base class of its slot."""
    assert undocumented(reference.find(policy)) == [], "add an Args section"


def test_the_reference_and_the_policies_were_found() -> None:
    assert len(TARGETS) > 15
    assert len(POLICIES) > 40
