"""Structured updates of low rank: one random factor is known to both sides, the other is sent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedbalancer.client.compress.wire import bounded, from_wire, require_bytes, wire
from fedbalancer.core.contracts import Compressor
from fedbalancer.core.fields import Count
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import IndexArray, Layout, Weights


@dataclass(frozen=True)
class LowRank(Compressor):
    """Sends B of H = A B, where A has `rank` columns and is drawn from the seed, for every client and round.

    From J. Konecny et al., "Federated Learning: Strategies for Improving Communication Efficiency", 2016, section 2.

    H has a row for every input of a unit and a column for every unit: the transpose of a tensor's (first axis, all
    others). A tensor of d1 x d2 takes 32 rank d2 bits. Vectors, and tensors with at most `rank` rows, are sent
    unchanged.

    A is sparse: the rows of H are assigned at random to `rank` groups of nearly equal size, each row with a random
    sign, and B holds the signed sums of the groups. These columns are orthonormal, and sums have the same bits on any
    number of threads, unlike matrix products.

    Differences from the paper: the paper trains B; here the finished update is projected, B = A'H, so A B is the
    nearest matrix to H that A allows. For small steps both are the same. On average a share rank / d1 of the squared
    length of H remains, and the mean of A B is rank / d1 times H. The default rank is that of the FedBalancer authors'
    code, which counted the bytes of all tensors in this way and then aggregated the uncompressed weights.

    Args:
        rank: Number of columns of A.

    Example:
        >>> LowRank(rank=2).encoded_bytes(Layout([("w", (10, 8))]))
        80
    """

    rank: Count = 100

    def encoded_bytes(self, layout: Layout) -> int:
        return self._sent(layout).wire_bytes

    def encode(self, update: Weights, layout: Layout, seed: int, residual: Weights | None) -> tuple[bytes, None]:
        tensors = enumerate(layout.split(bounded(update)).values())
        return b"".join(wire(self._project(tensor, seed, n)) for n, tensor in tensors), None

    def decode(self, payload: bytes, layout: Layout, seed: int) -> Weights:
        require_bytes(payload, self.encoded_bytes(layout))
        sent = self._sent(layout).split(from_wire(payload))
        return layout.join({name: self._restore(sent[name], shape, seed, n) for n, (name, shape) in enumerate(layout)})

    def _project(self, tensor: Weights, seed: int, number: int) -> Weights:
        """Return B, transposed."""
        if not self._shrinks(tensor.shape):
            return tensor
        group, entry = self._factor(tensor.shape, seed, number)
        sizes = np.bincount(group)
        by_group = np.take(tensor.reshape(len(tensor), -1) * entry, np.argsort(group, kind="stable"), axis=1)
        return np.add.reduceat(by_group, np.cumsum(sizes) - sizes, axis=1)

    def _restore(self, sent: Weights, shape: tuple[int, ...], seed: int, number: int) -> Weights:
        """Return A B from B transposed."""
        if not self._shrinks(shape):
            return sent
        group, entry = self._factor(shape, seed, number)
        return np.take(sent, group, axis=1) * entry

    def _factor(self, shape: tuple[int, ...], seed: int, number: int) -> tuple[IndexArray, Weights]:
        """Return A: the non-zero column of every row, and its value."""
        rng, rows = stream(seed, "low rank", number), math.prod(shape[1:])
        group = rng.permutation(np.arange(rows) * self.rank // rows)
        signs = 2 * rng.integers(0, 2, size=rows) - 1
        return group, (signs / np.sqrt(np.bincount(group)[group])).astype(np.float32)

    def _sent(self, layout: Layout) -> Layout:
        """Return the layout of what is sent."""
        return Layout((name, (shape[0], self.rank) if self._shrinks(shape) else shape) for name, shape in layout)

    def _shrinks(self, shape: tuple[int, ...]) -> bool:
        return len(shape) > 1 and shape[0] > 0 and self.rank < math.prod(shape[1:])
