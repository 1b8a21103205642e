"""Write the API reference into the pages of docs/reference, from the docstrings.

    python scripts/docs/reference.py          # rewrite the pages
    python scripts/docs/reference.py --check  # exit code 1 if a page is out of date

A page marks where an object is described: `<!-- api: fedbalancer.experiments.execute.run, fb.run, level=2 -->`, with an
optional heading and its level. Everything up to `<!-- end of api -->` is replaced. A new line `::: module.name` becomes
such a block. So the pages can be read in the repository, and the site shows the same text.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "reference"
END = "<!-- end of api -->"
BLOCK = re.compile(rf"^<!-- api: ([^\n]+?) -->\n.*?^{re.escape(END)}$", re.MULTILINE | re.DOTALL)
DIRECTIVE = re.compile(r"^::: (\S+)\n(?:    [^\n]*\n)*", re.MULTILINE)
EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1(?=\S).*)*", re.MULTILINE)
"""From a prompt to the next empty or less indented line."""
POLICIES = "built-in policies"
"""The block with the tables of all built-in policies."""
WIDTH = 100
Kind = griffe.DocstringSectionKind
Thing = griffe.Object | griffe.Alias


@cache
def package() -> griffe.Object:
    """Load the sources of the package; nothing is imported."""
    logging.getLogger("griffe").setLevel(logging.ERROR)
    loaded = griffe.load("fedbalancer", search_paths=[ROOT / "src"])
    assert isinstance(loaded, griffe.Object)
    return loaded


def find(path: str) -> Thing:
    """Return the object at a path such as `fedbalancer.experiments.execute.run`."""
    found = package()[path.removeprefix("fedbalancer.")]
    assert isinstance(found, griffe.Object | griffe.Alias)
    return found


def targets() -> list[str]:
    """Return the paths of all objects that the pages describe."""
    heads = [match[1] for page in PAGES.glob("*.md") for match in BLOCK.finditer(page.read_text(encoding="utf-8"))]
    return sorted({head.split(",")[0] for head in heads} - {POLICIES})


def rewrite(text: str, page: Path) -> str:
    """Return a page with all its blocks up to date.

    Args:
        text: The page.
        page: Its place, from which links are relative.
    """
    text = DIRECTIVE.sub(_convert, text)
    return BLOCK.sub(lambda match: f"<!-- api: {match[1]} -->\n\n{_block(match[1], page)}\n{END}", text)


def _convert(directive: re.Match[str]) -> str:
    """Return a `:::` directive, with its heading and level, as an empty block."""
    heading = re.search(r"^ *heading: (.+)$", directive[0], re.MULTILINE)
    level = re.search(r"^ *heading_level: (\d)$", directive[0], re.MULTILINE)
    parts = [directive[1], *([heading[1]] if heading else []), *([f"level={level[1]}"] if level else [])]
    return f"<!-- api: {', '.join(parts)} -->\n{END}\n"


def _block(head: str, page: Path) -> str:
    path, *options = (part.strip() for part in head.split(","))
    if path == POLICIES:
        return policy_tables()
    level = next((int(each.removeprefix("level=")) for each in options if each.startswith("level=")), 2)
    heading = next((each for each in options if not each.startswith("level=")), path)
    lines = list(describe(find(path), heading, level, page))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def describe(thing: Thing, heading: str, level: int, page: Path) -> Iterator[str]:
    """Yield the Markdown lines of an object and its public members.

    Args:
        thing: The object.
        heading: Its heading.
        level: Level of the heading.
        page: The page, from which links are relative.
    """
    thing = thing.final_target if isinstance(thing, griffe.Alias) else thing
    yield from (f"{'#' * level} {heading}", "")
    if thing.is_function and not _is_property(thing):
        yield from ("```python", signature(thing, heading.rpartition(".")[2].split(" ")[0]), "```", "")
    elif thing.is_class:
        yield from _class_facts(thing, heading, page)
    elif isinstance(thing, griffe.Attribute) and thing.value is not None:
        yield from (f"`{thing.name} = {thing.value}`", "")
    elif _is_property(thing):
        yield from (f"Property of type {_type(thing)}.", "")
    yield from _docstring(thing)
    for name, member in _members(thing):
        inside = f"{heading.split(' ', maxsplit=1)[0].rpartition('.')[2]}.{name}" if thing.is_class else name
        yield from ("", *describe(member, inside, level + 1, page))


def _class_facts(thing: Thing, heading: str, page: Path) -> Iterator[str]:
    source = os.path.relpath(str(thing.filepath), page.parent)
    named = (str(base).partition("[")[0].rpartition(".")[2] for base in thing.bases)  # type: ignore[union-attr]
    bases = [name for name in named if name not in ("object", "Protocol")]
    derived = f", derives from {', '.join(f'`{base}`' for base in bases)}" if bases else ""
    name = Path(str(thing.filepath)).relative_to(ROOT).as_posix()
    yield from (f"Class{derived}, in [{name}]({Path(source).as_posix()}).", "")


def signature(thing: Any, name: str) -> str:
    """Return the signature of a function as code, on one line if it fits.

    Args:
        thing: The function.
        name: The name to show.
    """
    parts: list[str] = []
    star = False
    for each in thing.parameters:
        if each.name in ("self", "cls") and not parts:
            continue
        kind = each.kind.value
        star |= kind == "variadic positional"
        if kind == "keyword-only" and not star:
            parts.append("*")
            star = True
        prefix = {"variadic positional": "*", "variadic keyword": "**"}.get(kind, "")
        annotation = f": {each.annotation}" if each.annotation is not None else ""
        value = "" if each.default is None else _value(thing, str(each.default))
        default = "" if each.default is None or prefix else f"{' = ' if annotation else '='}{value}"
        parts.append(f"{prefix}{each.name}{annotation}{default}")
    returns = f" -> {thing.returns}" if thing.returns is not None else ""
    line = f"{name}({', '.join(parts)}){returns}"
    return line if len(line) <= WIDTH else "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){returns}"])


def _docstring(thing: Thing) -> Iterator[str]:
    if thing.docstring is None:
        return
    sections = _sections(thing)
    if thing.is_class and not any(section.kind is Kind.parameters for section in sections):
        sections[1:1] = _inherited_parameters(thing)
    for section in sections:
        value = section.value
        if section.kind is Kind.text:
            yield from (value, "")
        elif section.kind in (Kind.parameters, Kind.attributes):
            title = "argument" if section.kind is Kind.parameters else "attribute"
            yield from _table(title, [(each.name, _about(thing, each.name), each.description) for each in value])
        elif section.kind in (Kind.returns, Kind.yields, Kind.raises):
            for each in value:
                named = f" `{each.annotation}`" if section.kind is Kind.raises else ""
                yield from (f"**{section.kind.value.capitalize()}**{named}: {_flat(each.description)}", "")
        elif section.kind is Kind.examples:
            yield from ("**Example**", "", *(part for _, part in value), "")
        elif section.kind is Kind.admonition:
            yield from (f"**{value.kind.capitalize()}**", "", value.contents, "")
        else:
            raise ValueError(f"{thing.path}: a docstring section {section.kind.value} has no rule here")


def _sections(thing: Any) -> list[Any]:
    text = griffe.Docstring(fenced(thing.docstring.value), parent=thing)
    return list(griffe.parse_google(text, warnings=False))


def _inherited_parameters(thing: Any) -> list[Any]:
    """Return the table of arguments of the nearest base class that has one, if this class takes the same."""
    for base in thing.mro() if list(thing.parameters) else ():
        found = [each for each in _sections(base) if each.kind is Kind.parameters] if base.docstring else []
        if found:
            return found
    return []


def _table(title: str, rows: list[tuple[str, tuple[str, str], str]]) -> Iterator[str]:
    yield from (f"| {title} | type | default | |", "|---|---|---|---|")
    for name, (kind, default), text in rows:
        yield f"| `{name}` | {_code(kind)} | {_code(default)} | {_flat(text)} |"
    yield ""


def _about(thing: Any, name: str) -> tuple[str, str]:
    """Return type and default of an argument, or of a field of a class."""
    for each in thing.parameters if thing.is_function or thing.is_class else ():
        if each.name == name.lstrip("*"):
            default = "" if each.default is None or "*" in name else _value(thing, str(each.default))
            return str(each.annotation or ""), default
    member = thing.all_members.get(name) if thing.is_class else None
    kind = getattr(member, "annotation", None) or getattr(member, "returns", None)
    default = _value(thing, str(getattr(member, "value", None) or ""))
    return str(kind or ""), re.sub(r"^Field\(default_factory=(\w+)\)$", r"\1()", default)


def _value(thing: Any, default: str) -> str:
    """Return the number or text that a constant stands for; any other default unchanged."""
    if not re.fullmatch(r"[A-Z][A-Z_]+", default) or default not in thing.module.members:
        return default
    constant = thing.module.members[default]
    value = str((constant.final_target if constant.is_alias else constant).value)
    return value if re.fullmatch(r"-?[\d._]+|'[^']*'", value) else default


def _code(text: str) -> str:
    """Return a type or default as code in a table, where a bar would end the cell."""
    plain = re.sub(r"Annotated\[(.+?), \w+\([^()]*\)\]", r"\1", re.sub(r"\s+", " ", text))
    return f"`{plain.replace(' | ', ' or ').replace('|', ' or ')}`" if plain else ""


def _flat(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")


def _type(thing: Any) -> str:
    kind = getattr(thing, "annotation", None) or getattr(thing, "returns", None)
    return _code(str(kind)) if kind is not None else "any"


def _is_property(thing: Thing) -> bool:
    return "property" in thing.labels or "cached-property" in thing.labels or bool(thing.is_attribute)


def _members(thing: Thing) -> list[tuple[str, Thing]]:
    """Return the public members that have a docstring of their own, in the order of the source."""
    if not (thing.is_module or thing.is_class) or "TypedDict" in [str(base) for base in getattr(thing, "bases", ())]:
        return []
    found = []
    for name, member in thing.members.items():
        if name.startswith("_") or (member.is_alias and not thing.is_module):
            continue
        if member.is_alias and (thing.exports is None or name not in thing.exports):
            continue
        if member.is_module or member.docstring is None:
            continue
        if member.is_attribute and thing.is_class and not _is_described_attribute(member):
            continue
        found.append((name, member))
    return found


def _is_described_attribute(member: Thing) -> bool:
    return "property" in member.labels or "cached-property" in member.labels


def fenced(docstring: str) -> str:
    """Return a docstring whose examples are blocks of code; Markdown would read >>> as three nested quotes.

    >>> fenced("Example:\\n    >>> 1 + 1\\n    2")
    'Example:\\n    ```pycon\\n    >>> 1 + 1\\n    2\\n    ```'
    """
    return EXAMPLE.sub(lambda example: f"{example[1]}```pycon\n{example[0]}\n{example[1]}```", docstring)


def policy_tables() -> str:
    """Return a table per slot of all built-in policies, with their fields, defaults and first sentences."""
    from fedbalancer.methods import policy_registry

    rows = policy_registry.policy_fields()
    lines: list[str] = []
    for slot, policies in policy_registry.POLICIES.items():
        lines += ["", f"### `{slot}`", "", "| policy | fields and defaults | what it does |", "|---|---|---|"]
        for kind in dict.fromkeys(policies.values()):
            own = [row for row in rows if row["policy"] == kind.__name__ and row["slot"] == slot]
            defaults = ", ".join(f"`{row['key']}={row['default']}`" for row in own)
            lines.append(f"| `{kind.__name__}` | {defaults or '–'} | {policy_registry.describe_policy(kind)} |")
    return "\n".join(lines[1:]) + "\n"


def main(arguments: list[str]) -> int:
    """Rewrite the pages, or check them; returns the exit code."""
    stale = []
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        new = rewrite(text, page)
        if new != text:
            stale.append(page.relative_to(ROOT).as_posix())
            if "--check" not in arguments:
                page.write_text(new, encoding="utf-8")
    print("\n".join(stale) if stale else "all pages are up to date")
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
