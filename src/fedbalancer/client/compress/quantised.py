"""Sketched updates: few bits per value, rounded at random so that nothing is lost on average."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbalancer.client.compress.random_subset import drawn_share, kept, require_share
from fedbalancer.client.compress.rotation import rotate, rotate_back
from fedbalancer.client.compress.wire import bounded, from_wire, packed, packed_bytes, require_bytes, unpacked, wire
from fedbalancer.core.contracts import Compressor
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import Layout, Weights

_ENDS_BYTES = 8


@dataclass(frozen=True)
class Quantised(Compressor):
    """Every value of a tensor becomes one of 2^bits levels, equally spaced from the tensor's least value to its
    greatest: one of its two neighbours, the nearer the likelier, so that the mean is the value itself. (J. Konecny et
    al., "Federated Learning: Strategies for Improving Communication Efficiency", 2016, section 3.)

    A tensor of d values takes `bits` d + 64 bits, the last ones for its two ends, and a squared error of at most
    d step^2 / 4. With `rotate` it is first rotated at random (`rotation`), which brings the ends together where a few
    values are large. With a `share` below 1 a random subset of every tensor goes through this, times d / k on arrival.

    Departures. 2^bits levels leave 2^bits - 1 steps (the paper's text has 2^bits intervals, which `bits` bits cannot
    name). The rotation goes by blocks and needs no padding. Tensors of a few values that would grow travel as they are.
    """

    bits: int = 8
    rotate: bool = True
    share: float = 1.0

    def __post_init__(self) -> None:
        if self.bits not in range(1, 9):
            raise BadSetting(f"Quantised: bits is {self.bits}; it must be a whole number from 1 to 8")
        require_share(self.share, "Quantised")

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
            values = values[drawn_share(len(values), self.share, stream(seed, "subset", number))]
        if self.rotate:
            values = rotate(values, stream(seed, "rotation", number))
        low, high = values.min(), values.max()
        levels = self._levels(values, low, high, stream(seed, "quantisation", number))
        return wire(np.array([low, high])) + packed(levels, self.bits)

    def _decoded(self, payload: bytes, size: int, seed: int, number: int) -> Weights:
        if self._plain(size):
            return from_wire(payload)
        low, high = from_wire(payload[:_ENDS_BYTES])
        levels = unpacked(payload[_ENDS_BYTES:], kept(size, self.share), self.bits, np.uint8)
        values = np.take(np.linspace(low, high, 2**self.bits).astype(np.float32), levels)
        if self.rotate:
            values = rotate_back(values, stream(seed, "rotation", number))
        if self.share == 1:
            return values
        update = np.zeros(size, dtype=np.float32)
        update[drawn_share(size, self.share, stream(seed, "subset", number))] = values * np.float32(size / len(values))
        return update

    def _levels(
        self, values: Weights, low: np.float32, high: np.float32, rng: np.random.Generator
    ) -> NDArray[np.uint8]:
        """The number of the level that each value is rounded to: down, or up with the probability of the remainder."""
        top = np.float32(2**self.bits - 1)
        if not high > low:
            return np.zeros(len(values), dtype=np.uint8)
        places: Weights = (values - low) / (high - low) * top
        places += rng.random(len(places), dtype=np.float32)
        return np.minimum(places, top).astype(np.uint8)
