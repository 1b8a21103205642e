"""A trap in the interpreter itself, which none of our code can go around: every name that an unpickler looks up."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

_caught: list[str] | None = None


def _trap(event: str, arguments: tuple[object, ...]) -> None:
    if _caught is not None and event == "pickle.find_class":
        _caught.append(f"{arguments[0]}.{arguments[1]}")


sys.addaudithook(_trap)


@pytest.fixture
def caught() -> Iterator[list[str]]:
    """Record every name that an unpickler of this process looks up while the test runs."""
    global _caught  # noqa: PLW0603 - a hook of the interpreter cannot be taken out again
    _caught = []
    yield _caught
    _caught = None
