"""One after the other, in this process."""

from __future__ import annotations

from collections.abc import Sequence

from fedbalancer.core.interfaces import Trainer
from fedbalancer.core.types import ClientWork, Evaluation, FloatArray, Layout, TrainResult, Weights


class InlineExecutor:
    """The trainer itself, with nothing around it."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    @property
    def layout(self) -> Layout:
        return self.trainer.layout

    def initial_weights(self, seed: int) -> Weights:
        return self.trainer.initial_weights(seed)

    def train(self, weights: Weights, works: Sequence[ClientWork]) -> list[TrainResult]:
        return [self.trainer.train(weights, work) for work in works]

    def losses(self, weights: Weights, clients: Sequence[str]) -> list[FloatArray]:
        return [self.trainer.losses(weights, client) for client in clients]

    def evaluate(self, weights: Weights) -> Evaluation:
        return self.trainer.evaluate(weights)

    def evaluate_clients(self, weights: Weights, clients: Sequence[str]) -> list[Evaluation]:
        return [self.trainer.evaluate_client(weights, client) for client in clients]

    def close(self) -> None:
        """Nothing to release."""
