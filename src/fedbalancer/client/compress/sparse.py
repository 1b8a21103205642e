"""Compressors that send a subset of an update's values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbalancer.client.compress.wire import (
    bounded,
    decode_positions,
    encode_positions,
    from_wire,
    positions_bytes,
    require_bytes,
    wire,
)
from fedbalancer.core.contracts import Compressor
from fedbalancer.core.fields import NonzeroShare
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import Layout, Weights


def kept(size: int, share: float) -> int:
    """Return how many of `size` values a share is: the nearest integer, at least one.

    Example:
        >>> kept(10, 0.25), kept(10, 0.001), kept(0, 0.5)
        (2, 1, 0)
    """
    return min(max(round(size * share), 1), size)


def random_subset(size: int, count: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return a mask of exactly `count` of `size` places; every such subset is equally likely.

    Every place draws a key and the smallest keys are selected. The result is a mask, because the order of a partition
    differs between processors. Equal keys at the limit (rare, even for millions of places) favour the first places.

    Args:
        size: Number of places.
        count: Number of selected places.
        rng: Source of random numbers.
    """
    if count == size:
        return np.ones(size, dtype=bool)
    keys = rng.integers(0, 2**32, size=size, dtype=np.uint32)
    limit = np.partition(keys, count - 1)[count - 1]
    chosen = np.asarray(keys <= limit)
    surplus = np.count_nonzero(chosen) - count
    if surplus:
        chosen[np.flatnonzero(keys == limit)[-surplus:]] = False
    return chosen


def draw_share(size: int, share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return a mask of a random share of the places."""
    return random_subset(size, kept(size, share), rng)


@dataclass(frozen=True)
class RandomMask(Compressor):
    """Sends a random `share` of the update's values and sets the others to 0.

    From J. Konecny et al., "Federated Learning: Strategies for Improving Communication Efficiency", 2016, section 2.

    Both sides draw the mask from the seed, so only values are sent, 32 bits each. The values are not scaled: the mean
    of the decoded update is `share` times the update (compare `Subsample`).

    Differences from the paper: the paper trains under the mask; here the mask is applied after training. One mask
    covers the whole vector, with exactly the number of values nearest to `share`.

    Args:
        share: Share of the values to send.

    Example:
        >>> RandomMask(share=0.5).encoded_bytes(Layout([("w", (10,))]))
        20
    """

    share: NonzeroShare = 0.1

    def encoded_bytes(self, layout: Layout) -> int:
        return 4 * kept(layout.parameters, self.share)

    def encode(self, update: Weights, layout: Layout, seed: int, residual: Weights | None) -> tuple[bytes, None]:
        return wire(update[draw_share(layout.parameters, self.share, stream(seed, "random mask"))]), None

    def decode(self, payload: bytes, layout: Layout, seed: int) -> Weights:
        require_bytes(payload, self.encoded_bytes(layout))
        update = np.zeros(layout.parameters, dtype=np.float32)
        update[draw_share(layout.parameters, self.share, stream(seed, "random mask"))] = from_wire(payload)
        return update


@dataclass(frozen=True)
class Subsample(Compressor):
    """Sends k random values of d, scaled by d / k, and sets the others to 0.

    From J. Konecny et al., "Federated Learning: Strategies for Improving Communication Efficiency", 2016, section 3.

    The mean over seeds is the update itself; the mean squared error is (d / k - 1) times its squared length. Both sides
    draw the subset from the seed, so only values are sent, 32 bits each. k is the integer nearest to `share` times d.

    Args:
        share: Share of the values to send.

    Example:
        >>> Subsample(share=0.1).encoded_bytes(Layout([("w", (100,))]))
        40
    """

    share: NonzeroShare = 0.1

    def encoded_bytes(self, layout: Layout) -> int:
        return 4 * kept(layout.parameters, self.share)

    def encode(self, update: Weights, layout: Layout, seed: int, residual: Weights | None) -> tuple[bytes, None]:
        return wire(bounded(update[draw_share(layout.parameters, self.share, stream(seed, "subsample"))])), None

    def decode(self, payload: bytes, layout: Layout, seed: int) -> Weights:
        require_bytes(payload, self.encoded_bytes(layout))
        values = from_wire(payload)
        update = np.zeros(layout.parameters, dtype=np.float32)
        factor = np.float32(len(update) / max(len(values), 1))
        update[draw_share(len(update), self.share, stream(seed, "subsample"))] = values * factor
        return update


@dataclass(frozen=True)
class GradientDropping(Compressor):
    """Sends the `share` of values with the largest magnitude, and keeps the rest for later rounds.

    From A. F. Aji and K. Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017, who drop 99 %.

    The values are the largest of the whole vector (their global threshold), after adding what was kept back. A value
    takes 32 bits, its position about 2 + log2(d / k) bits.

    Differences from the paper: they drop values below a threshold that they estimate from a sample; here exactly k
    values are sent, so the bytes are known before training. They drop gradients in every step; here it is the local
    update, in every round that the client finishes in time.

    Args:
        share: Share of the values to send.

    Example:
        >>> GradientDropping(share=0.1).encoded_bytes(Layout([("w", (100,))]))
        47
    """

    share: NonzeroShare = 0.01

    def encoded_bytes(self, layout: Layout) -> int:
        count = kept(layout.parameters, self.share)
        return 4 * count + positions_bytes(count, layout.parameters)

    def encode(self, update: Weights, layout: Layout, seed: int, residual: Weights | None) -> tuple[bytes, Weights]:
        kept_back = bounded(update if residual is None else update + residual)
        count = kept(len(update), self.share)
        if not count:
            return b"", kept_back
        largest = np.sort(np.argpartition(np.abs(kept_back), len(update) - count)[len(update) - count :])
        payload = wire(kept_back[largest]) + encode_positions(largest, len(update))
        kept_back[largest] = 0
        return payload, kept_back

    def decode(self, payload: bytes, layout: Layout, seed: int) -> Weights:
        require_bytes(payload, self.encoded_bytes(layout))
        update = np.zeros(layout.parameters, dtype=np.float32)
        count = kept(len(update), self.share)
        update[decode_positions(payload[4 * count :], count, len(update))] = from_wire(payload[: 4 * count])
        return update
