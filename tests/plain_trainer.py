"""A trainer for tests, in a module of its own so that worker processes can import it."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import numpy as np

from fedbalancer.core.errors import TrainingDiverged
from fedbalancer.core.types import ClientWork, Evaluation, FloatArray, Layout, TrainResult, Weights


@dataclass(frozen=True)
class Plain:
    """A trainer of NumPy only, whose result depends on every field of the work. Two clients of it misbehave."""

    layout = Layout((("weight", (3,)),))

    def initial_weights(self, seed: int) -> Weights:
        return np.random.default_rng(seed).normal(size=3).astype(np.float32)

    def train(self, weights: Weights, work: ClientWork) -> TrainResult:
        if work.client == "killer":
            os.kill(os.getpid(), signal.SIGKILL)
        if work.client == "diverging":
            raise TrainingDiverged("client 'diverging': loss is not finite")
        rng = np.random.default_rng([work.seed, work.batches, work.batch_size])
        update = (weights * rng.normal(size=3) * work.learning_rate - work.mu).astype(np.float32)
        return TrainResult(work.client, update, work.indices, rng.random(len(work.indices)))

    def losses(self, weights: Weights, client: str) -> FloatArray:
        return np.linspace(0.0, float(weights.sum()), len(client))

    def evaluate(self, weights: Weights) -> Evaluation:
        return Evaluation(float(weights[0]), float(weights[1]), 3)

    def evaluate_client(self, weights: Weights, client: str) -> Evaluation:
        return Evaluation(float(weights[0]), float(len(client)), 3)
