"""Only the largest values travel; the client keeps the others for later."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbalancer.client.compress.elias_fano import decode_positions, encode_positions, positions_bytes
from fedbalancer.client.compress.random_subset import kept, require_share
from fedbalancer.client.compress.wire import bounded, from_wire, require_bytes, wire
from fedbalancer.core.contracts import Compressor
from fedbalancer.core.types import Layout, Weights


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

    share: float = 0.01

    def __post_init__(self) -> None:
        require_share(self.share, "GradientDropping")

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
