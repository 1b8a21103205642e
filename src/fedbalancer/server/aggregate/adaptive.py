"""What the adaptive server optimisers of Reddi et al. (2021) share: they step along the mean update as a gradient."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbalancer.types import FloatArray, ServerState, Weights


@dataclass(frozen=True, eq=False)
class Moments:
    """First and second moment of the mean update, a value a parameter; empty before the first round."""

    first: FloatArray
    second: FloatArray

    @classmethod
    def none_yet(cls) -> Moments:
        return cls(np.zeros(0), np.zeros(0))

    def or_zeros(self, size: int) -> Moments:
        """These moments, or zeros if there are none yet."""
        return self if len(self.first) == size else Moments(np.zeros(size), np.zeros(size))


def stepped(state: ServerState, moments: Moments, eta: float, tau: float) -> Weights:
    """x + eta m / (sqrt(v) + tau)."""
    return (state.weights + eta * moments.first / (np.sqrt(moments.second) + tau)).astype(np.float32)
