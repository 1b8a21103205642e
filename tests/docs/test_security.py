"""Every promise of SECURITY.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "SECURITY.md").read_text()
ROWS = [line for line in TEXT.partition("| promise |")[2].splitlines() if line.startswith("| ") and "**" not in line]


def test_every_promise_names_tests_that_exist() -> None:
    assert len(ROWS) > 30
    for row in ROWS:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, row
        for file, name in named:
            assert f"def {name}(" in (ROOT / file).read_text(), (file, name)


def test_every_attacker_with_a_promise_is_in_the_table() -> None:
    sections = [part for part in TEXT.split("\n### ")[1:] if "- Protected" in part]
    groups = re.findall(r"\| \*\*(.+?)\*\* \|", TEXT)
    assert len(groups) == len(sections) + 1  # a client on Flower has a list of promises instead
