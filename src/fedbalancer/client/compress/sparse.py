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
    """How many of `size` values a share of them is: the nearest whole number, at least one.

    >>> kept(10, 0.25), kept(10, 0.001), kept(0, 0.5)
    (2, 1, 0)
    """
    return min(max(round(size * share), 1), size)


def random_subset(size: int, count: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """A mask of exactly `count` of `size` places, every such subset as likely.

    Every place draws a key and the smallest keys win. A mask, not positions: the order in which a partition leaves its
    elements differs between processors, and client and server need not have the same kind. Equal keys at the limit
    (one draw in hundreds, for millions of places) are settled in favour of the first places.
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


def drawn_share(size: int, share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """A mask of a random share of the places."""
    return random_subset(size, kept(size, share), rng)


@dataclass(frozen=True)
class RandomMask(Compressor):
    """A random `share` of the update's values, fresh for every client and round; the others are 0. (J. Konecny et al.,
    "Federated Learning: Strategies for Improving Communication Efficiency", 2016, section 2.)

    Both sides draw the pattern from the seed, so only values travel, 32 bits each. They are not scaled: the update is
    restricted, not estimated (`Subsample` does that), and its mean is `share` times what it was.

    Departures. The paper trains under the mask; here the mask comes after training. The pattern is one over the whole
    vector, with exactly the share of it that is nearest to `share`.
    """

    share: NonzeroShare = 0.1

    def encoded_bytes(self, layout: Layout) -> int:
        return 4 * kept(layout.parameters, self.share)

    def encode(self, update: Weights, layout: Layout, seed: int, residual: Weights | None) -> tuple[bytes, None]:
        return wire(update[drawn_share(layout.parameters, self.share, stream(seed, "random mask"))]), None

    def decode(self, payload: bytes, layout: Layout, seed: int) -> Weights:
        require_bytes(payload, self.encoded_bytes(layout))
        update = np.zeros(layout.parameters, dtype=np.float32)
        update[drawn_share(layout.parameters, self.share, stream(seed, "random mask"))] = from_wire(payload)
        return update


@dataclass(frozen=True)
class Subsample(Compressor):
    """k random values of d, times d / k; the others are 0. The mean over seeds is the update itself, the mean squared
    error (d / k - 1) times its squared length. (J. Konecny et al., "Federated Learning: Strategies for Improving
    Communication Efficiency", 2016, section 3.)

    Both sides draw the subset from the seed, so only values travel, 32 bits each. The subset is one over the whole
    vector; k is the whole number nearest to `share` times d, and the factor is that of k, not of `share`.
    """

    share: NonzeroShare = 0.1

    def encoded_bytes(self, layout: Layout) -> int:
        return 4 * kept(layout.parameters, self.share)

    def encode(self, update: Weights, layout: Layout, seed: int, residual: Weights | None) -> tuple[bytes, None]:
        return wire(bounded(update[drawn_share(layout.parameters, self.share, stream(seed, "subsample"))])), None

    def decode(self, payload: bytes, layout: Layout, seed: int) -> Weights:
        require_bytes(payload, self.encoded_bytes(layout))
        values = from_wire(payload)
        update = np.zeros(layout.parameters, dtype=np.float32)
        factor = np.float32(len(update) / max(len(values), 1))
        update[drawn_share(len(update), self.share, stream(seed, "subsample"))] = values * factor
        return update


@dataclass(frozen=True)
class GradientDropping(Compressor):
    """Of the update plus what was kept back before, the `share` of greatest magnitude travels and the rest is kept
    back: sent + kept = update + kept before, exactly. (A. F. Aji and K. Heafield, "Sparse Communication for Distributed
    Gradient Descent", EMNLP 2017; dropping 99 % is theirs.)

    The largest are those of the whole vector (their global threshold). A value takes 32 bits, its position about
    2 + log2(d / k) more (`elias_fano`).

    Departures. They drop below a threshold that they estimate from a sample of the values; here exactly k values
    travel, so that the bytes are known before training, which the clock needs. They drop gradients every step; here it
    is the local update, in every round that the client takes part in and finishes in time.
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
