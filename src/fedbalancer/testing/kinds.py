"""What kind of value something is."""

from __future__ import annotations

from typing import Any

import numpy as np


def is_real(value: Any) -> bool:
    """A number, infinite ones included; neither a truth value nor not-a-number."""
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return number and not np.isnan(value)


def is_integer(value: Any) -> bool:
    """A whole number that is not a truth value."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_indices(value: Any) -> bool:
    """A 1-d array of integers."""
    return isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu"


def kind(value: Any) -> str:
    """What a value is, for a sentence."""
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
