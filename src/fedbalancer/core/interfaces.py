"""Interfaces between a method and the world: training, executors, device models, availability and engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from fedbalancer.core.types import (
    ClientWork,
    DivergedTraining,
    Evaluation,
    FloatArray,
    IndexArray,
    Layout,
    RoundPlan,
    RoundResult,
    TrainResult,
    UpdateFold,
    Weights,
)


class Training(Protocol):
    """A local training in progress, batch by batch."""

    def step(self, rows: IndexArray) -> None:
        """Train the batch of these samples."""

    def keep(self) -> None:
        """Remember the current model."""

    def kept(self) -> TrainResult:
        """Return the result at the last `keep`."""

    def result(self) -> TrainResult:
        """End the training and return the result of all steps."""


class Trainer(Protocol):
    """Local training and evaluation of one task. All methods are pure functions of their arguments."""

    @property
    def layout(self) -> Layout:
        """Names and shapes of the model's tensors."""

    def initial_weights(self, seed: int) -> Weights:
        """Return the weights before the first round."""

    def train(self, weights: Weights, work: ClientWork) -> TrainResult:
        """Train one client."""

    def losses(self, weights: Weights, client: str) -> FloatArray:
        """Return the loss of every sample of a client, from a forward pass in evaluation mode."""

    def evaluate(self, weights: Weights) -> Evaluation:
        """Evaluate weights on the test data."""

    def evaluate_client(self, weights: Weights, client: str) -> Evaluation:
        """Evaluate weights on a client's own test data or, if it has none, on its training data."""


class Executor(Protocol):
    """Distributes a trainer's work over processes. Results have the order of the work.

    A client whose training or forward pass diverges gets a `DivergedTraining` instead of a result.
    """

    @property
    def layout(self) -> Layout:
        """Names and shapes of the model's tensors."""

    def initial_weights(self, seed: int) -> Weights:
        """Return the weights before the first round."""

    def train(self, weights: Weights, works: Sequence[ClientWork]) -> Sequence[TrainResult | DivergedTraining]:
        """Train clients."""

    def train_each(self, weights: Weights, works: Sequence[ClientWork]) -> Iterator[TrainResult | DivergedTraining]:
        """Train clients and yield each result as soon as all earlier ones were yielded; few are in memory at once."""

    def losses(self, weights: Weights, clients: Sequence[str]) -> Sequence[FloatArray | DivergedTraining]:
        """Return the loss of every sample of these clients."""

    def evaluate(self, weights: Weights) -> Evaluation:
        """Evaluate weights on the test data."""

    def evaluate_clients(self, weights: Weights, clients: Sequence[str]) -> list[Evaluation]:
        """Evaluate weights on the clients' own test data or, of those that have none, on their training data."""

    def close(self) -> None:
        """End the processes."""


class Draw(Protocol):
    """Speed of one device in one round."""

    @property
    def batch_s(self) -> float:
        """Seconds per batch."""

    @property
    def download_s(self) -> float:
        """Seconds of the download."""

    @property
    def upload_s(self) -> float:
        """Seconds of the upload."""


class DeviceModel(Protocol):
    """Simulated speed of every client's device."""

    def expected_network_s(self, client: str, down_bytes: int, up_bytes: int) -> float:
        """Return the seconds of download plus upload at mean speed."""

    def sample_batch_s(self, client: str, count: int) -> FloatArray:
        """Return `count` batch latencies, sampled before training."""

    def draw(self, client: str, round_number: int, down_bytes: int, up_bytes: int) -> Draw:
        """Return batch latency and transfer times of one client in one round."""


class Availability(Protocol):
    """When a client's device is available."""

    def is_available(self, client: str, at_s: float) -> bool:
        """Whether the device is available at this time."""

    def elapsed_s(self, client: str, start_s: float, busy_s: float) -> float:
        """Return the seconds until `busy_s` seconds of work that starts at `start_s` are done; infinite if never."""


class Engine(Protocol):
    """Runs planned rounds, on a virtual clock or on real devices."""

    def available(self, clock_s: float) -> IndexArray:
        """Return the ledger rows of the clients that can be selected now."""

    def run(
        self, plan: RoundPlan, weights: Weights, clock_s: float, fold: Callable[[], UpdateFold | None] | None = None
    ) -> RoundResult:
        """Run a round. An engine may use `fold` to add updates instead of returning them."""

    def evaluate(self, weights: Weights) -> Evaluation:
        """Evaluate weights on the test data."""
