"""Examples in docstrings are code on the site: Markdown takes >>> for a quote in a quote in a quote."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
"""From a prompt to the next empty line."""


def fenced(docstring: str) -> str:
    """A docstring whose examples are blocks of code.

    >>> print(fenced("A sum.\\n\\n>>> 1 + 1\\n2"))
    A sum.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    return EXAMPLE.sub(lambda example: f"```pycon\n{example[0]}\n```", docstring)


class Doctests(griffe.Extension):
    """Runs over everything that the reference reads."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
