"""Compressors that send a few bits per value.

The random rotation takes n log n additions: signs, then a Hadamard transform (N. Ailon and B. Chazelle, 2009; for
updates A. T. Suresh et al., "Distributed Mean Estimation with Limited Communication", ICML 2017).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.client.compress.sparse import draw_share, kept
from fedbalancer.client.compress.wire import bounded, from_wire, pack, packed_bytes, require_bytes, unpack, wire
from fedbalancer.core.contracts import Compressor
from fedbalancer.core.fields import Bounds, NonzeroShare
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import Layout, Weights

BLOCK = 4096
"""Size of the largest Hadamard matrix. A spike spreads over this many values, each 1/64 of it."""


def rotate(values: Weights, rng: np.random.Generator) -> Weights:
    """Return rotated values of the same length.

    The vector is covered by blocks of n values, n the largest power of two within it and `BLOCK`. If its length is no
    multiple of n, the last n values are rotated once more. A product of rotations is a rotation, and unlike padding to
    a power of two, this does not make the vector longer.

    Args:
        values: The vector.
        rng: Source of the signs.
    """
    result = values.astype(np.float32)
    for part, signs in _steps(result, rng):
        np.multiply(part, signs, out=part)
        _hadamard(part)
    return result


def rotate_back(values: Weights, rng: np.random.Generator) -> Weights:
    """Invert `rotate`, with a generator in the same state."""
    result = values.astype(np.float32)
    for part, signs in reversed(_steps(result, rng)):
        _hadamard(part)
        np.multiply(part, signs, out=part)
    return result


def _steps(values: Weights, rng: np.random.Generator) -> list[tuple[Weights, Weights]]:
    """Return the parts to rotate, one block per column, and their random signs."""
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
    """Apply the orthonormal Walsh-Hadamard transform to every column, in place. It is its own inverse."""
    rows = len(columns)
    scratch = np.empty(columns.size // 2, dtype=np.float32)
    for half in (1 << step for step in range(rows.bit_length() - 1)):
        pairs = columns.reshape(rows // (2 * half), 2, half, -1)
        upper, lower = pairs[:, 0], pairs[:, 1]
        difference = np.subtract(upper, lower, out=scratch.reshape(upper.shape))
        upper += lower
        lower[...] = difference
    columns *= np.float32(1 / math.sqrt(rows))


_ENDS_BYTES = 8


@dataclass(frozen=True)
class Quantised(Compressor):
    """Rounds every value of a tensor to one of 2^bits levels between its minimum and maximum.

    From J. Konecny et al., "Federated Learning: Strategies for Improving Communication Efficiency", 2016, section 3.

    The levels are equally spaced. A value becomes one of its two neighbours at random, so that the mean is the value. A
    tensor of d values takes `bits` d + 64 bits, with a squared error of at most d step^2 / 4.

    Differences from the paper: 2^bits levels have 2^bits - 1 steps (the paper's 2^bits intervals do not fit `bits`
    bits). The rotation uses blocks and needs no padding. Small tensors that would grow are sent unchanged.

    Args:
        bits: Bits per value, 1 to 8.
        rotate: Rotate the tensor at random first, which narrows the range if a few values are large.
        share: Share of values to send, scaled by d / k on arrival.

    Example:
        >>> Quantised(bits=2).encoded_bytes(Layout([("w", (100,))]))
        33
    """

    bits: Annotated[int, Bounds(ge=1, le=8)] = 8
    rotate: bool = True
    share: NonzeroShare = 1.0

    def encoded_bytes(self, layout: Layout) -> int:
        return sum(map(self._bytes, layout.sizes))

    def encode(self, update: Weights, layout: Layout, seed: int, residual: Weights | None) -> tuple[bytes, None]:
        tensors = enumerate(layout.split(bounded(update)).values())
        return b"".join(self._encoded(tensor.ravel(), seed, number) for number, tensor in tensors), None

    def decode(self, payload: bytes, layout: Layout, seed: int) -> Weights:
        require_bytes(payload, self.encoded_bytes(layout))
        update, start = {}, 0
        for number, ((name, _), size) in enumerate(zip(layout, layout.sizes, strict=True)):
            end = start + self._bytes(size)
            update[name] = self._decoded(payload[start:end], size, seed, number)
            start = end
        return layout.join(update)

    def _bytes(self, size: int) -> int:
        return min(_ENDS_BYTES + packed_bytes(kept(size, self.share), self.bits), 4 * size)

    def _plain(self, size: int) -> bool:
        return self._bytes(size) == 4 * size

    def _encoded(self, values: Weights, seed: int, number: int) -> bytes:
        if self._plain(len(values)):
            return wire(values)
        if self.share < 1:
            values = values[draw_share(len(values), self.share, stream(seed, "subset", number))]
        if self.rotate:
            values = rotate(values, stream(seed, "rotation", number))
        low, high = values.min(), values.max()
        levels = self._levels(values, low, high, stream(seed, "quantisation", number))
        return wire(np.array([low, high])) + pack(levels, self.bits)

    def _decoded(self, payload: bytes, size: int, seed: int, number: int) -> Weights:
        if self._plain(size):
            return from_wire(payload)
        low, high = from_wire(payload[:_ENDS_BYTES])
        levels = unpack(payload[_ENDS_BYTES:], kept(size, self.share), self.bits, np.uint8)
        values = np.take(np.linspace(low, high, 2**self.bits).astype(np.float32), levels)
        if self.rotate:
            values = rotate_back(values, stream(seed, "rotation", number))
        if self.share == 1:
            return values
        update = np.zeros(size, dtype=np.float32)
        update[draw_share(size, self.share, stream(seed, "subset", number))] = values * np.float32(size / len(values))
        return update

    def _levels(
        self, values: Weights, low: np.float32, high: np.float32, rng: np.random.Generator
    ) -> NDArray[np.uint8]:
        """Return the level of each value: rounded down, or up with the probability of the remainder."""
        top = np.float32(2**self.bits - 1)
        if not high > low:
            return np.zeros(len(values), dtype=np.uint8)
        places: Weights = (values - low) / (high - low) * top
        places += rng.random(len(places), dtype=np.float32)
        return np.minimum(places, top).astype(np.uint8)


@dataclass(frozen=True)
class SignSGD(Compressor):
    """Sends one bit per parameter: the sign of the update.

    From J. Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems", ICML 2018, with majority vote.

    `decode` returns -1 and +1. These are votes, which need an aggregator with `counts_votes`, such as `MajorityVote`. A
    value of 0 votes at random, by the seed.

    Difference from the paper: the paper uses the gradient of one mini-batch, here it is the whole local update.

    Example:
        >>> SignSGD().encoded_bytes(Layout([("w", (100,))]))
        13
    """

    def refuses(self, method: Any) -> str | None:
        """Refuse aggregators that do not count votes."""
        if method.aggregate.counts_votes:
            return None
        return f"SignSGD sends votes, which need the MajorityVote aggregator, not {type(method.aggregate).__name__}"

    def encoded_bytes(self, layout: Layout) -> int:
        return packed_bytes(layout.parameters, 1)

    def encode(self, update: Weights, layout: Layout, seed: int, residual: Weights | None) -> tuple[bytes, None]:
        votes = (update > 0).astype(np.uint8)
        undecided = np.flatnonzero(update == 0)
        votes[undecided] = stream(seed, "sign").integers(0, 2, size=len(undecided), dtype=np.uint8)
        return pack(votes, 1), None

    def decode(self, payload: bytes, layout: Layout, seed: int) -> Weights:
        require_bytes(payload, self.encoded_bytes(layout))
        votes = unpack(payload, layout.parameters, 1, np.uint8)
        return 2 * votes.astype(np.float32) - 1
