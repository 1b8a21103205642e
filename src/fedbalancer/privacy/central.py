"""Central differential privacy of the model: clipped updates, and noise on their mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from fedbalancer.core.contracts import NOTHING, Private, SumAggregator
from fedbalancer.core.fields import Bounds
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import ClientReport, ServerState, Setup, Weights


@dataclass(frozen=True)
class PrivateMean(SumAggregator):
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

    def start(self, setup: Setup, state: ServerState) -> ClippedFold:
        return ClippedFold(self, setup, state)

    def generator(self, setup: Setup, state: ServerState) -> np.random.Generator:
        """Return the source of a round's noise.

        Args:
            setup: What the server knows before the first round.
            state: The state before the round.
        """
        if self.noise_is_known:
            return stream(setup.seed, "model noise", state.round + 1)
        return np.random.default_rng()


class ClippedFold:
    """Adds clipped updates, and noise at the end.

    Args:
        policy: The policy.
        setup: What the server knows before the first round.
        state: The state before the round.
    """

    def __init__(self, policy: PrivateMean, setup: Setup, state: ServerState) -> None:
        self._policy, self._setup, self._state = policy, setup, state
        self._total = np.zeros(state.weights.shape, dtype=np.float64)

    def add(self, report: ClientReport) -> None:
        """Add a report."""
        update = report.update.astype(np.float64)
        self._total += update * min(1.0, self._policy.clip_norm / max(float(np.linalg.norm(update)), 1e-12))

    def finish(self) -> tuple[Weights, None]:
        """Add the noise and return the new weights."""
        scale = self._policy.noise_multiplier * self._policy.clip_norm
        self._total += self._policy.generator(self._setup, self._state).normal(0.0, scale, size=self._total.shape)
        return (self._state.weights + self._total / self._setup.clients_per_round).astype(np.float32), None
