"""Structured updates of low rank: one factor is random and known to both sides, the other travels."""

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
    """H = A B with A, of `rank` columns, random from the seed, fresh for every client and round; only B travels.
    (J. Konecny et al., "Federated Learning: Strategies for Improving Communication Efficiency", 2016, section 2.)

    H has a row for every input of a unit and a column for every unit: the paper's reshaping of a kernel to
    (inputs x width x height) x outputs. The tensors here have the units first, so H is the transpose of (first axis,
    all others). A tensor of d1 x d2 sends 32 rank d2 bits, the share rank / d1 of its own. Vectors, and tensors with no
    more than `rank` rows, travel as they are: nothing grows.

    Departures. The paper trains B; here the finished update is projected, B = A'H with the columns of A orthonormal, so
    that A B is the matrix nearest to H that A allows. For small steps that is the same: gradient descent on B moves the
    weights by A A' times the gradient. Of the squared length of H a share of rank / d1 is left on average, and the mean
    of A B is rank / d1 times H: the update is cut down, not estimated. The default rank is that of the FedBalancer
    authors' code, which counted the bytes of all tensors in this way (biases included, which grew a hundredfold) and
    then aggregated the uncompressed weights.

    A is sparse: the rows of H are dealt at random into `rank` groups as equal as can be, each row with a random sign,
    and B holds the signed sums of the groups. Such columns are orthonormal as they are drawn, where dense ones would
    have to be made so; and sums are the same to the last bit on any number of threads, which matrix products are not.
    """

    rank: Count = 100

    def encoded_bytes(self, layout: Layout) -> int:
        return self._sent(layout).wire_bytes

    def encode(self, update: Weights, layout: Layout, seed: int, residual: Weights | None) -> tuple[bytes, None]:
        tensors = enumerate(layout.split(bounded(update)).values())
        return b"".join(wire(self._projected(tensor, seed, n)) for n, tensor in tensors), None

    def decode(self, payload: bytes, layout: Layout, seed: int) -> Weights:
        require_bytes(payload, self.encoded_bytes(layout))
        sent = self._sent(layout).split(from_wire(payload))
        return layout.join({name: self._regained(sent[name], shape, seed, n) for n, (name, shape) in enumerate(layout)})

    def _projected(self, tensor: Weights, seed: int, number: int) -> Weights:
        """B, transposed."""
        if not self._shrinks(tensor.shape):
            return tensor
        group, entry = self._factor(tensor.shape, seed, number)
        sizes = np.bincount(group)
        by_group = np.take(tensor.reshape(len(tensor), -1) * entry, np.argsort(group, kind="stable"), axis=1)
        return np.add.reduceat(by_group, np.cumsum(sizes) - sizes, axis=1)

    def _regained(self, sent: Weights, shape: tuple[int, ...], seed: int, number: int) -> Weights:
        """A B, from B transposed."""
        if not self._shrinks(shape):
            return sent
        group, entry = self._factor(shape, seed, number)
        return np.take(sent, group, axis=1) * entry

    def _factor(self, shape: tuple[int, ...], seed: int, number: int) -> tuple[IndexArray, Weights]:
        """A: of every row the column that is not 0 in it, and the value there."""
        rng, rows = stream(seed, "low rank", number), math.prod(shape[1:])
        group = rng.permutation(np.arange(rows) * self.rank // rows)
        signs = 2 * rng.integers(0, 2, size=rows) - 1
        return group, (signs / np.sqrt(np.bincount(group)[group])).astype(np.float32)

    def _sent(self, layout: Layout) -> Layout:
        """What travels: of a tensor that shrinks the transpose of B."""
        return Layout((name, (shape[0], self.rank) if self._shrinks(shape) else shape) for name, shape in layout)

    def _shrinks(self, shape: tuple[int, ...]) -> bool:
        return len(shape) > 1 and shape[0] > 0 and self.rank < math.prod(shape[1:])
