"""A random rotation in n log n additions: signs, then a Hadamard transform (N. Ailon and B. Chazelle, 2009; for updates
A. T. Suresh et al., "Distributed Mean Estimation with Limited Communication", ICML 2017)."""

from __future__ import annotations

import math

import numpy as np

from fedbalancer.core.types import Weights

BLOCK = 4096
"""Largest Hadamard matrix. A spike spreads over so many values, which leaves 1/64 of it."""


def rotate(values: Weights, rng: np.random.Generator) -> Weights:
    """The rotated values, as many as before.

    A vector of any length is covered by blocks of n values, n the largest power of two within it and `BLOCK`; where
    it is no multiple of n, its last n values are rotated once more, the rest with them. That is a product of rotations
    and so is one, and unlike a vector padded to a power of two it is no longer on the wire.
    """
    result = values.astype(np.float32)
    for part, signs in _steps(result, rng):
        np.multiply(part, signs, out=part)
        _hadamard(part)
    return result


def rotate_back(values: Weights, rng: np.random.Generator) -> Weights:
    """What `rotate` was given, with a generator in the same state."""
    result = values.astype(np.float32)
    for part, signs in reversed(_steps(result, rng)):
        _hadamard(part)
        np.multiply(part, signs, out=part)
    return result


def _steps(values: Weights, rng: np.random.Generator) -> list[tuple[Weights, Weights]]:
    """What is rotated, one block a column, and the random signs."""
    if not len(values):
        return []
    rows = min(BLOCK, 1 << (len(values).bit_length() - 1))
    whole = len(values) // rows * rows
    parts = [values[:whole].reshape(rows, -1)]
    if whole < len(values):
        parts.append(values[-rows:].reshape(rows, 1))
    return [(part, _signs(part.shape, rng)) for part in parts]


def _signs(shape: tuple[int, ...], rng: np.random.Generator) -> Weights:
    drawn = np.frombuffer(rng.bytes(-(-math.prod(shape) // 8)), dtype=np.uint8)
    bits = np.unpackbits(drawn, count=math.prod(shape)).reshape(shape)
    return 2 * bits.astype(np.float32) - 1


def _hadamard(columns: Weights) -> None:
    """The orthonormal Walsh-Hadamard transform of every column, in place. Its inverse is itself."""
    rows = len(columns)
    scratch = np.empty(columns.size // 2, dtype=np.float32)
    for half in (1 << step for step in range(rows.bit_length() - 1)):
        pairs = columns.reshape(rows // (2 * half), 2, half, -1)
        upper, lower = pairs[:, 0], pairs[:, 1]
        difference = np.subtract(upper, lower, out=scratch.reshape(upper.shape))
        upper += lower
        lower[...] = difference
    columns *= np.float32(1 / math.sqrt(rows))
