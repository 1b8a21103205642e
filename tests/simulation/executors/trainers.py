"""Trainers for the tests of executors, in a module of their own so that worker processes can import them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedbalancer.core.errors import BadData, TrainingDiverged
from fedbalancer.core.types import ClientWork, Evaluation, FloatArray, Layout, TrainResult, Weights

MANY = 30_000
"""Weights, enough to travel through shared memory."""


class Awkward(Exception):
    """An error that does not survive pickling."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


@dataclass(frozen=True)
class Large:
    """A trainer of NumPy only whose results depend on everything it is given; some clients misbehave.

    The first worker that trains `victim` leaves its process id in `folder` and waits there to be killed.
    """

    folder: Path = Path()
    weights: int = MANY
    data: Weights = field(default_factory=lambda: np.ones(MANY, dtype=np.float32))

    @property
    def layout(self) -> Layout:
        return Layout((("weight", (self.weights,)),))

    def initial_weights(self, seed: int) -> Weights:
        return np.random.default_rng(seed).normal(size=self.weights).astype(np.float32)

    def train(self, weights: Weights, work: ClientWork) -> TrainResult:
        if work.client.startswith("diverging"):
            raise TrainingDiverged(f"client {work.client!r}: loss is not finite")
        if work.client.startswith("empty"):
            raise BadData(f"client {work.client!r} has no samples")
        if work.client == "broken":
            raise Awkward(1, 2)
        if work.client == "slow":
            time.sleep(3)
        if work.client == "victim":
            self._wait_to_be_killed()
        rng = np.random.default_rng([work.seed, work.batches, work.batch_size])
        update = (weights * rng.normal(size=len(weights)) * work.learning_rate - work.mu).astype(np.float32)
        return TrainResult(work.client, update, work.indices, rng.random(len(work.indices)))

    def losses(self, weights: Weights, client: str) -> FloatArray:
        if client == "threads":
            import torch

            asked = int(os.environ.get("OMP_NUM_THREADS", "0"))
            return np.array([torch.get_num_threads(), asked, os.getpid()], dtype=float)
        return np.linspace(0.0, float(weights.sum() * self.data.sum()), len(client))

    def evaluate(self, weights: Weights) -> Evaluation:
        return self.combine(self.evaluate_pieces(weights, range(self.evaluation_pieces())))

    def evaluate_client(self, weights: Weights, client: str) -> Evaluation:
        return Evaluation(float(weights.sum()) + len(client), 0.0, len(client))

    def evaluation_pieces(self) -> int:
        return 5

    def evaluate_pieces(self, weights: Weights, pieces: Sequence[int]) -> list[float]:
        return [float(weights[piece::5].astype(np.float64).sum()) for piece in pieces]

    @staticmethod
    def combine(pieces: Sequence[float]) -> Evaluation:
        return Evaluation(sum(pieces), pieces[0], len(pieces))

    def _wait_to_be_killed(self) -> None:
        try:
            with (self.folder / "pid").open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            return  # it has happened
        time.sleep(120)


class ShowsGpu(Large):
    """A trainer whose layout names the GPU that its process sees."""

    @property
    def layout(self) -> Layout:
        return Layout([(os.environ.get("CUDA_VISIBLE_DEVICES", "all"), (self.weights,))])


def work(client: str, batches: int = 3) -> ClientWork:
    """A piece of work with a seed of its own."""
    seed = int.from_bytes(client.encode(), "big") % 2**32
    return ClientWork(client, np.arange(5), batches, 10, 0.1, 0.01, None, seed)


def works(count: int) -> list[ClientWork]:
    """Clients of unequal work."""
    return [work(f"client{number}", batches=1 + number * 7 % 5) for number in range(count)]
