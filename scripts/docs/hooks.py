"""Hooks of the site: a page for every file of the repository that some page links to.

Pages link to examples, sources and SECURITY.md as they do in a checkout. On the site these are pages of their own,
under `source/`, so that every link leads somewhere and nothing is fetched from a host.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FOLDER = "source"
ALWAYS = ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "bash", ".sbatch": "bash"}


def linked(markdown: str, origin: Path) -> Iterator[Path]:
    """The files and folders outside docs/ that a page at `origin` links to."""
    for match in LINK.finditer(markdown):
        target = _target(match[2], origin)
        if target is not None and DOCS not in target.parents:
            yield target


def uri(target: Path) -> str:
    """Where the site has a file of the repository."""
    if DOCS in target.parents:
        return target.relative_to(DOCS).as_posix()
    path = f"{FOLDER}/{target.relative_to(ROOT).as_posix()}"
    if target.is_dir():
        return f"{path}/index.md"
    return path if target.suffix == ".md" else f"{path}.md"


def rewritten(markdown: str, origin: Path, here: str) -> str:
    """A page with its links as they are from `here`, its place on the site."""

    def mend(match: re.Match[str]) -> str:
        target = _target(match[2], origin)
        if target is None:
            return match[0]
        return f"{match[1]}{os.path.relpath(uri(target), os.path.dirname(here))}{match[3] or ''}{match[4]}"

    return LINK.sub(mend, markdown)


def shown(target: Path) -> str:
    """A file or folder of the repository as Markdown."""
    name = target.relative_to(ROOT).as_posix()
    if target.is_dir():
        readme = target / "README.md"
        text = readme.read_text() if readme.exists() else f"# {name}\n"
        inside = (path for path in sorted(target.rglob("*")) if _is_source(path))
        listed = "\n\n".join(f"### {path.relative_to(target)}\n\n{_fenced(path)}" for path in inside)
        return f"{text}\n\n## Files of {name}\n\n{listed}\n"
    return target.read_text() if target.suffix == ".md" else f"# {name}\n\n{_fenced(target)}\n"


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are linked to, and those that these link to in turn."""
    from mkdocs.structure.files import File

    wanted = [ROOT / name for name in ALWAYS]
    for page in files.documentation_pages():
        wanted += linked(page.content_string, DOCS / page.src_uri)
    while wanted:
        target = wanted.pop()
        if files.get_file_from_path(uri(target)) is None:
            text = shown(target)
            wanted += linked(text, _origin(target))
            files.append(File.generated(config, uri(target), content=rewritten(text, _origin(target), uri(target))))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Change links to files outside of docs/ and to folders."""
    here = page.file.src_uri
    return markdown if page.file.generated_by else rewritten(markdown, DOCS / here, here)


def _target(link: str, origin: Path) -> Path | None:
    if ":" in link:
        return None
    target = (origin.parent / link).resolve()
    if target.is_dir() and DOCS in target.parents and (target / "README.md").exists():
        target /= "README.md"
    return target if target.exists() and ROOT in target.parents else None


def _origin(target: Path) -> Path:
    return target / "README.md" if target.is_dir() else target


def _is_source(path: Path) -> bool:
    return path.suffix in (*LANGUAGES, ".json") and "__pycache__" not in path.parts


def _fenced(path: Path) -> str:
    return f"````{LANGUAGES.get(path.suffix, '')}\n{path.read_text().rstrip()}\n````"
