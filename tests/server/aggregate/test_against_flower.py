"""Server optimisers, robust means and q-FFL give what Flower's own strategies give on the same updates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from builders import make_report, make_setup, make_state
from numpy.typing import NDArray

from fedbalancer.core.randomness import stream
from fedbalancer.core.types import ClientReport
from fedbalancer.server.aggregate import (
    QFFL,
    FedAdagrad,
    FedAdam,
    FedYogi,
    Krum,
    Median,
    ServerMomentum,
    TrimmedMean,
    WeightedMean,
)

flwr_app = pytest.importorskip("flwr.app")
strategies = pytest.importorskip("flwr.serverapp.strategy")

SIZE, CLIENTS, ROUNDS = 40, 9, 5
LEARNING_RATE = 0.05


@dataclass
class Reply:
    """The part of a message that strategies read; a real one can only be made inside a running app."""

    content: Any

    def has_error(self) -> bool:
        return False

    def has_content(self) -> bool:
        return True


def replies(weights: NDArray[np.float32], reports: list[ClientReport]) -> list[Any]:
    """The messages of the same clients in Flower: whole models, samples and losses."""
    results = []
    for report in reports:
        model = flwr_app.ArrayRecord({"w": flwr_app.Array(weights.astype(np.float64) + report.update)})
        metrics = flwr_app.MetricRecord({"num-examples": report.weight, "train_loss": report.summary.loss_mean})
        results.append(Reply(flwr_app.RecordDict({"arrays": model, "metrics": metrics})))
    return results


def reports(round: int) -> list[ClientReport]:
    rng = stream(3, "updates", round)
    results = []
    for row in range(CLIENTS):
        loss = float(rng.uniform(0.2, 3))
        update = rng.normal(0.1, 0.3, SIZE).astype(np.float32).tolist()
        report = make_report(f"c{row}", update, float(rng.integers(1, 50)))
        results.append(replace(report, summary=replace(report.summary, loss_sum=loss * 20, loss_count=20.0)))
    return results


def flower_rounds(strategy: Any) -> NDArray[np.float64]:
    weights = np.zeros(SIZE, dtype=np.float64)
    for round in range(1, ROUNDS + 1):
        as_record = flwr_app.ArrayRecord({"w": flwr_app.Array(weights)})
        plain = isinstance(strategy, strategies.FedAvgM | strategies.QFedAvg)
        strategy.current_arrays = as_record if plain else {"w": weights}
        arrays, _ = strategy.aggregate_train(round, replies(weights, reports(round)))
        weights = arrays["w"].numpy()
    return weights


def our_rounds(policy: Any) -> NDArray[np.float32]:
    setup = make_setup(learning_rate=LEARNING_RATE)
    state = make_state(round=0, weights=np.zeros(SIZE, dtype=np.float32), aggregate=policy.init(setup))
    for round in range(1, ROUNDS + 1):
        weights, own = policy.aggregate(setup, state, reports(round))
        state = replace(state, round=round, weights=weights, aggregate=own)
    return state.weights


PAIRS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "mean": (WeightedMean(), strategies.FedAvg),
    "fedadam": (FedAdam(eta=0.05), lambda: strategies.FedAdam(eta=0.05, beta_1=0.9, beta_2=0.99, tau=1e-3)),
    "fedyogi": (FedYogi(eta=0.05), lambda: strategies.FedYogi(eta=0.05, beta_1=0.9, beta_2=0.99, tau=1e-3)),
    "fedadagrad": (FedAdagrad(eta=0.05), lambda: strategies.FedAdagrad(eta=0.05, tau=1e-3)),
    "momentum": (
        ServerMomentum(beta=0.7, eta=0.5),
        lambda: strategies.FedAvgM(server_learning_rate=0.5, server_momentum=0.7),
    ),
    "median": (Median(), strategies.FedMedian),
    "trimmed mean": (TrimmedMean(0.25), lambda: strategies.FedTrimmedAvg(beta=0.25)),
    "krum": (Krum(malicious=0.25), lambda: strategies.Krum(num_malicious_nodes=2)),
    "multi-krum": (
        Krum(malicious=0.25, keep=3),
        lambda: strategies.MultiKrum(num_malicious_nodes=2, num_nodes_to_select=3),
    ),
    "q-ffl": (QFFL(q=0.5), lambda: strategies.QFedAvg(client_learning_rate=LEARNING_RATE, q=0.5)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_five_rounds_give_the_same_model(name: str) -> None:
    policy, make_strategy = PAIRS[name]
    wanted = flower_rounds(make_strategy())
    assert np.abs(wanted).max() > 0.01
    assert our_rounds(policy) == pytest.approx(wanted, rel=1e-4, abs=1e-5)
