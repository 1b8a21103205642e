"""A regression in NumPy (no torch, so that a client starts quickly), and FedBalancer with a constant deadline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer import method
from fedbalancer.core.types import Setup
from fedbalancer.server.deadline.baselines import FixedDeadline, FixedState

FEATURES = 6


@dataclass(frozen=True)
class Seconds(FixedDeadline):
    """`multiple` seconds a round, whatever the clients take: what a fault costs is seen against a known deadline."""

    def init(self, setup: Setup) -> FixedState:
        return FixedState(self.multiple)


METHOD = method("fedbalancer", deadline=Seconds())


def data(part: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Samples of one client: all share a truth, each has its own noise."""
    rng = np.random.default_rng(part)
    x = rng.normal(size=(40 + 10 * part, FEATURES))
    return x, x @ np.arange(FEATURES) + rng.normal(0, 0.1, len(x))


def losses(weights: NDArray[Any], x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    return np.asarray((x @ weights - y) ** 2)
