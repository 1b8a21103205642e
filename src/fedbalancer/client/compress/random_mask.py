"""Structured updates with a random pattern of zeros, known to both sides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbalancer.client.compress.subset import kept, random_subset, require_share
from fedbalancer.client.compress.tensors import from_wire, parameters, require_bytes, wire
from fedbalancer.randomness import stream
from fedbalancer.types import Layout, Weights


@dataclass(frozen=True)
class RandomMask:
    """A random `share` of the update's values, fresh for every client and round; the others are 0. (J. Konecny et al.,
    "Federated Learning: Strategies for Improving Communication Efficiency", 2016, section 2.)

    Both sides draw the pattern from the seed, so only values travel, 32 bits each. They are not scaled: the update is
    restricted, not estimated (`Subsample` does that), and its mean is `share` times what it was.

    Departures. The paper trains under the mask; here the mask comes after training. The pattern is one over the whole
    vector, with exactly the share of it that is nearest to `share`.
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        require_share(self.share, "RandomMask")

    def encoded_bytes(self, layout: Layout) -> int:
        return 4 * kept(parameters(layout), self.share)

    def encode(self, update: Weights, layout: Layout, seed: int, residual: Weights | None) -> tuple[bytes, None]:
        return wire(update[self._pattern(layout, seed)]), None

    def decode(self, payload: bytes, layout: Layout, seed: int) -> Weights:
        require_bytes(payload, self.encoded_bytes(layout))
        update = np.zeros(parameters(layout), dtype=np.float32)
        update[self._pattern(layout, seed)] = from_wire(payload)
        return update

    def _pattern(self, layout: Layout, seed: int) -> NDArray[np.bool_]:
        size = parameters(layout)
        return random_subset(size, kept(size, self.share), stream(seed, "random mask"))
