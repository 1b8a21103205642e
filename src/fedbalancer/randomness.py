"""Random numbers computed from what they are for, never from a generator that is passed around.

A stream is named by (seed, purpose, round, client). Two streams with different names are independent, and the same
name gives the same numbers on any number of workers, in any order, before and after a resume.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence


class _Key(ISeedSequence):
    """A ready-made key. Given as `Philox(key=...)` it would first gather entropy and throw it away: twice the time."""

    def __init__(self, key: Any) -> None:
        self.key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        return self.key


def stream(seed: int, purpose: str, round: int = 0, client: str = "") -> np.random.Generator:
    """The generator of one purpose.

    >>> bool(stream(0, "batch", 3, "ann").integers(100) == stream(0, "batch", 3, "ann").integers(100))
    True
    """
    key = np.frombuffer(_digest(seed, purpose, round, client), dtype=np.uint64)
    return np.random.Generator(np.random.Philox(_Key(key)))  # type: ignore[arg-type] # its stubs know one kind


def integer_seed(seed: int, purpose: str, round: int = 0, client: str = "") -> int:
    """A 63-bit seed of the same family, for libraries that want an integer."""
    return int.from_bytes(_digest(seed, purpose, round, client)[:8], "little") >> 1


def _digest(seed: int, purpose: str, round: int, client: str) -> bytes:
    name = f"{seed}\x1f{purpose}\x1f{round}\x1f{client}".encode()
    return hashlib.blake2b(name, digest_size=16).digest()
