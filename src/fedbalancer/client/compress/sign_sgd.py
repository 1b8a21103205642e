"""Updates as signs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbalancer.client.compress.wire import packed, packed_bytes, require_bytes, unpacked
from fedbalancer.core.contracts import Compressor
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import Layout, Weights


@dataclass(frozen=True)
class SignSGD(Compressor):
    """One bit per parameter: whether it went up or down. (J. Bernstein et al., "signSGD: Compressed Optimisation for
    Non-Convex Problems", ICML 2018, with majority vote.)

    `decode` gives -1 and +1 and nothing else. These are votes, not an update: the aggregator has to be one that takes
    the sign of their sum times a step of its own, as `MajorityVote` does, and says so with `counts_votes = True`. A
    value of 0 has no sign; it votes at random, by the seed, so that a parameter that nobody moves is not pushed the
    same way every round.

    Departure. The paper takes the sign of the gradient of one mini-batch; here it is that of the whole local update.
    """

    def refuses(self, method: Any) -> str | None:
        """Votes need an aggregator that counts them."""
        if method.aggregate.counts_votes:
            return None
        return f"SignSGD sends votes, which need the MajorityVote aggregator, not {type(method.aggregate).__name__}"

    def encoded_bytes(self, layout: Layout) -> int:
        return packed_bytes(layout.parameters, 1)

    def encode(self, update: Weights, layout: Layout, seed: int, residual: Weights | None) -> tuple[bytes, None]:
        votes = (update > 0).astype(np.uint8)
        undecided = np.flatnonzero(update == 0)
        votes[undecided] = stream(seed, "sign").integers(0, 2, size=len(undecided), dtype=np.uint8)
        return packed(votes, 1), None

    def decode(self, payload: bytes, layout: Layout, seed: int) -> Weights:
        require_bytes(payload, self.encoded_bytes(layout))
        votes = unpacked(payload, layout.parameters, 1, np.uint8)
        return 2 * votes.astype(np.float32) - 1
