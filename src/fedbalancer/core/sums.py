"""A sum that is the same on every Python."""

from __future__ import annotations

from collections.abc import Iterable


def total(values: Iterable[float]) -> float:
    """The values added one by one. The built-in `sum` makes up for rounding since Python 3.12: with it the last digits
    of a run would hang on the version.

    >>> total([1e16, 1.0, -1e16])
    0.0
    """
    added = 0.0
    for value in values:
        added += value
    return added
