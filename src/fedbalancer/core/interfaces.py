"""Interfaces between a method and the world: training, executors, device models, availability and engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fedbalancer.core.types import (
    ClientWork,
    Evaluation,
    FloatArray,
    IndexArray,
    Layout,
    RoundPlan,
    RoundResult,
    TrainResult,
    Weights,
)


class Training(Protocol):
    """A local training while it goes on, batch by batch."""

    def step(self, rows: IndexArray) -> None:
        """Train the batch of these samples."""

    def keep(self) -> None:
        """Remember the model as it is now."""

    def kept(self) -> TrainResult:
        """The result at the last `keep`."""

    def result(self) -> TrainResult:
        """The result of all steps; the training is over."""


class Trainer(Protocol):
    """Local training and evaluation of one task: pure functions of their arguments."""

    @property
    def layout(self) -> Layout: ...
    def initial_weights(self, seed: int) -> Weights: ...
    def train(self, weights: Weights, work: ClientWork) -> TrainResult: ...
    def losses(self, weights: Weights, client: str) -> FloatArray:
        """Loss of every sample of the client, by a forward pass in evaluation mode."""

    def evaluate(self, weights: Weights) -> Evaluation: ...
    def evaluate_client(self, weights: Weights, client: str) -> Evaluation:
        """How well a model does on the client's own samples."""


class Executor(Protocol):
    """Spreads a trainer's work; results come back in the order of the work."""

    @property
    def layout(self) -> Layout: ...
    def initial_weights(self, seed: int) -> Weights: ...
    def train(self, weights: Weights, works: Sequence[ClientWork]) -> list[TrainResult]: ...
    def losses(self, weights: Weights, clients: Sequence[str]) -> list[FloatArray]: ...
    def evaluate(self, weights: Weights) -> Evaluation: ...
    def evaluate_clients(self, weights: Weights, clients: Sequence[str]) -> list[Evaluation]: ...
    def close(self) -> None: ...


class Draw(Protocol):
    """One device in one round."""

    @property
    def batch_s(self) -> float: ...
    @property
    def download_s(self) -> float: ...
    @property
    def upload_s(self) -> float: ...


class DeviceModel(Protocol):
    """How fast every client's device is. Modelled here, measured on real devices."""

    def expected_network_s(self, client: str, down_bytes: int, up_bytes: int) -> float:
        """Download plus upload at mean speed."""

    def sample_batch_s(self, client: str, count: int) -> FloatArray:
        """`count` batch latencies sampled before training starts."""

    def draw(self, client: str, round: int, down_bytes: int, up_bytes: int) -> Draw:
        """Batch latency and transfer times of one client in one round."""


class Availability(Protocol):
    """When a client's device may work."""

    def is_available(self, client: str, at_s: float) -> bool: ...
    def elapsed_s(self, client: str, start_s: float, busy_s: float) -> float:
        """Seconds on the clock until `busy_s` seconds of work are done that begin at `start_s`; inf if never."""


class Engine(Protocol):
    """Runs plans: on a virtual clock, or on real devices."""

    def available(self, clock_s: float) -> IndexArray:
        """Ledger rows of the clients that can be selected for a round that starts now."""

    def run(self, plan: RoundPlan, weights: Weights, clock_s: float) -> RoundResult: ...
    def evaluate(self, weights: Weights) -> Evaluation: ...
