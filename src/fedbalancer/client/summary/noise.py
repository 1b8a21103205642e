"""Protection of a private client's values: Gaussian noise on a grid, withheld counts, and seconds in two digits.

The number of trained samples depends on the losses if samples are selected by loss, and so do the epochs that fit the
deadline. Exact counts beside a noisy summary would reveal what the noise hides. So the client withholds them, every
update has weight 1, and the server estimates the counts from the noisy numbers (`client.policies.with_estimates`).
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
from dataclasses import replace

import numpy as np

from fedbalancer.core.types import FloatArray, Summary

MOST_NOISE = 1e8
"""Largest standard deviation for which every noisy number is an exact multiple of its step."""
DEVIATIONS = 10.0
"""Largest accepted noise, in standard deviations; exceeded once in 10^22 numbers."""
NO_INFORMATION = math.inf
"""Noise multiplier of a summary without losses."""


def with_noise(exact: FloatArray, deviation: float, rng: np.random.Generator, step: float = 1.0) -> FloatArray:
    """Add N(0, `deviation`), rounded to multiples of `step`.

    The lowest bits of a double plus Gaussian noise can reveal the double (Mironov, "On significance of the least
    significant bits for differential privacy", 2012). Here every result is a multiple of `step`, whatever the number
    was.

    The privacy accounting is that of the Gaussian mechanism: `exact` is on the grid, so `exact + round(noise)` equals
    `round(exact + noise)`, a function of what the Gaussian mechanism releases. The normal numbers are doubles; their
    distance from an ideal normal distribution, rounded, is about 2^-50.

    Args:
        exact: Numbers that are multiples of `step`.
        deviation: Standard deviation of the noise.
        rng: Source of the noise.
        step: Step of the grid.

    Example:
        >>> with_noise(np.array([3.0, 4.0]), 0.0, np.random.default_rng(0)).tolist()
        [3.0, 4.0]
    """
    return np.asarray(exact + step * np.rint(rng.normal(0.0, deviation / step, size=exact.shape)))


def without_counts(summary: Summary) -> Summary:
    """Return the summary without the number of trained samples, with batch seconds in two digits."""
    return replace(summary, trained=0, batch_s=coarse(summary.batch_s))


def coarse(seconds: float) -> float:
    """Round seconds down to two significant digits.

    Example:
        >>> coarse(0.12987), coarse(1499.0), coarse(0.0)
        (0.12, 1400.0, 0.0)
    """
    if not 0 < seconds < math.inf:
        return seconds
    digits = 1 - math.floor(math.log10(seconds))
    return max(min(round(math.floor(seconds * 10.0**digits) / 10.0**digits, digits), seconds), 1e-9)


def system_generator() -> np.random.Generator:
    """Return a generator whose every bit comes from the operating system (`os.urandom`).

    It has no state that could be guessed, seeded or copied by a fork.
    """
    return np.random.Generator(_SystemBits())  # type: ignore[arg-type]


_WORD, _HALF, _REAL = (
    ctypes.CFUNCTYPE(kind, ctypes.c_void_p) for kind in (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_double)
)
_NAME = b"BitGenerator"


class _Functions(ctypes.Structure):
    """NumPy's `bitgen_t`: the functions that a `Generator` calls."""

    _fields_ = (
        ("state", ctypes.c_void_p),
        ("next_uint64", _WORD),
        ("next_uint32", _HALF),
        ("next_double", _REAL),
        ("next_raw", _WORD),
    )


class _SystemBits:
    """A bit generator for NumPy ("Extending numpy.random"): a lock, and a capsule with its functions."""

    def __init__(self) -> None:
        os.urandom(8)  # raise here: an error inside the functions would be lost
        self.lock = threading.Lock()
        self._functions = _Functions(None, _WORD(_word), _HALF(_half), _REAL(_real), _WORD(_word))
        capsule = ctypes.pythonapi.PyCapsule_New
        capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self.capsule = capsule(ctypes.addressof(self._functions), _NAME, None)


def _word(_: int | None) -> int:
    return int.from_bytes(os.urandom(8), "little")


def _half(_: int | None) -> int:
    return int.from_bytes(os.urandom(4), "little")


def _real(_: int | None) -> float:
    return (_word(None) >> 11) * 2.0**-53
