"""Central differential privacy of the model: clipped updates, and noise on their mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from fedbalancer.core.contracts import NOTHING, Aggregator, Private
from fedbalancer.core.fields import Bounds
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import ClientReport, ServerState, Setup, Weights


@dataclass(frozen=True)
class PrivateMean(Aggregator):
    """Clip every update and add noise to the mean: central differential privacy of the model.

    The step is the sum of the clipped updates plus N(0, `noise_multiplier` x `clip_norm`) in every parameter, divided
    by `clients_per_round`. The number of reports is not used, because it would reveal who reported. All clients have
    the same weight, and a round without reports adds noise, too. One client moves the sum by at most `clip_norm`, so
    the models protect a client from everyone but the server, which sees the updates. This holds only if no policy
    treats other clients depending on the client's report (`fedbalancer.store.privacy.model_claim`).

    Reference: McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018.

    Args:
        clip_norm: Largest norm of an update.
        noise_multiplier: Standard deviation of the noise divided by `clip_norm`.
        draws: Source of the noise: "seed" for simulations that repeat, or "system" for real clients, which know the
            seed.
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    clip_norm: Annotated[float, Bounds(gt=0, lt=math.inf)] = 1.0
    noise_multiplier: Annotated[float, Bounds(gt=0, lt=math.inf)] = 1.0
    draws: Literal["seed", "system"] = "seed"

    @property
    def model_noise_multiplier(self) -> float:
        """Noise multiplier of the model, for the accounting."""
        return self.noise_multiplier

    @property
    def noise_is_known(self) -> bool:
        """Whether everyone who knows the seed can remove the noise."""
        return self.draws == "seed"

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, None]:
        total = np.zeros(state.weights.shape, dtype=np.float64)
        for report in sorted(reports, key=lambda report: report.client):
            update = report.update.astype(np.float64)
            total += update * min(1.0, self.clip_norm / max(float(np.linalg.norm(update)), 1e-12))
        total += self._generator(setup, state).normal(0.0, self.noise_multiplier * self.clip_norm, size=total.shape)
        return (state.weights + total / setup.clients_per_round).astype(np.float32), None

    def _generator(self, setup: Setup, state: ServerState) -> np.random.Generator:
        if self.noise_is_known:
            return stream(setup.seed, "model noise", state.round + 1)
        return np.random.default_rng()
