"""Examples in docstrings are code on the site; Markdown would read >>> as three nested quotes."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1(?=\S).*)*", re.MULTILINE)
"""From a prompt to the next empty or less indented line."""


def fenced(docstring: str) -> str:
    """Return a docstring whose examples are blocks of code.

    >>> fenced("Example:\\n    >>> 1 + 1\\n    2")
    'Example:\\n    ```pycon\\n    >>> 1 + 1\\n    2\\n    ```'
    """
    return EXAMPLE.sub(lambda example: f"{example[1]}```pycon\n{example[0]}\n{example[1]}```", docstring)


class Doctests(griffe.Extension):
    """Applied to everything in the reference."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
