"""Sketched updates: a random subset of the values, scaled so that nothing is lost on average."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbalancer.client.compress.subset import kept, random_subset, require_share
from fedbalancer.client.compress.tensors import bounded, from_wire, parameters, require_bytes, wire
from fedbalancer.randomness import stream
from fedbalancer.types import Layout, Weights


@dataclass(frozen=True)
class Subsample:
    """k random values of d, times d / k; the others are 0. The mean over seeds is the update itself, the mean squared
    error (d / k - 1) times its squared length. (J. Konecny et al., "Federated Learning: Strategies for Improving
    Communication Efficiency", 2016, section 3.)

    Both sides draw the subset from the seed, so only values travel, 32 bits each. The subset is one over the whole
    vector; k is the whole number nearest to `share` times d, and the factor is that of k, not of `share`.
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        require_share(self.share, "Subsample")

    def encoded_bytes(self, layout: Layout) -> int:
        return 4 * kept(parameters(layout), self.share)

    def encode(self, update: Weights, layout: Layout, seed: int, residual: Weights | None) -> tuple[bytes, None]:
        return wire(bounded(update[self._subset(layout, seed)])), None

    def decode(self, payload: bytes, layout: Layout, seed: int) -> Weights:
        require_bytes(payload, self.encoded_bytes(layout))
        values = from_wire(payload)
        update = np.zeros(parameters(layout), dtype=np.float32)
        update[self._subset(layout, seed)] = values * np.float32(len(update) / max(len(values), 1))
        return update

    def _subset(self, layout: Layout, seed: int) -> NDArray[np.bool_]:
        size = parameters(layout)
        return random_subset(size, kept(size, self.share), stream(seed, "subsample"))
