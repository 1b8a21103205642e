"""The model's epsilon against neighbouring clients that are played through the shipped server, engine and loop.

Two runs differ in the data of one client, whose update is replaced by zeros in both. A finite epsilon for one client
rests on this: the sum of the other clients' clipped updates is the same in both runs, in every round.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from experiments import tinytask

import fedbalancer as fb
from fedbalancer.core.types import RoundPlan, RoundResult, Weights
from fedbalancer.experiments.simulation import Simulation, build
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.methods.table import BASES
from fedbalancer.server.loop import rounds
from fedbalancer.simulation.local_costs import needs_costs
from fedbalancer.store.privacy import privacy_rows

pytest.importorskip("dp_accounting")

WHO, CLIP, ROUNDS = "c5", 1.0, 14
CENTRAL = f"aggregate=fedbalancer.privacy.central:PrivateMean(clip_norm={CLIP},noise_multiplier=1)"
OTHERS = (
    "fedavg+1t+late", "fedavg+1t+groupfloor", "fedavg+1t+fedcs", "fedavg+1t+powerofchoice", "fedavg+1t+robust",
    "oort+robust", "fedbalancer+robust", "fedbalancer-clients", "fedbalancer-samples", "fedbalancer+batches",
    "canter+learned", "prox+1t+batches", "fedavg+1t+silent", "fedavg+1t+averaged",
)  # fmt: skip
METHODS = (*(name for name in BASES if not needs_costs(fb.method(name).client)), *OTHERS)
"""All methods whose aggregation may be that of `CENTRAL`: none of slot `train`, and none that trains parts."""
FINITE = ("fedavg+1t", "fedavg+spc", "prox+2t", "fedbuff", "fedavg+1t+late", "fedavg+1t+averaged")


class WithoutUpdateOf:
    """An engine in which one client takes part as usual, but sends an update of zeros."""

    def __init__(self, simulation: Simulation) -> None:
        self.engine = simulation.engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def run(self, plan: RoundPlan, weights: Weights, clock_s: float, fold: Any = None) -> RoundResult:
        result = self.engine.run(plan, weights, clock_s)
        silenced = [
            replace(each, update=np.zeros_like(each.update)) if each.client == WHO else each for each in result.reports
        ]
        return replace(result, reports=tuple(silenced))


def simulation(name: str, other_data: bool) -> Simulation:
    task = tinytask.load()
    features, labels = task.clients[WHO]
    if other_data:
        task = tinytask.load(clients={**task.clients, WHO: (features * 6, 1 - labels)})
    settings = {"w": 2, "learning_rate": 0.5}
    return build(RunSpec(task=task, method=f"{name}[{CENTRAL}]", seed=1, settings=settings), task)


@cache
def sums_of_the_others(name: str, other_data: bool) -> tuple[np.ndarray, ...]:
    """The sum of the clipped updates of all other clients, by round."""
    made = simulation(name, other_data)
    start = made.server.init(made.executor.initial_weights(1))
    played = rounds(made.server, WithoutUpdateOf(made), start, lambda state: state.round >= ROUNDS)
    sums = []
    for state, result in played:
        total = np.zeros(len(state.weights))
        for report in result.reports:
            norm = float(np.linalg.norm(report.update.astype(np.float64)))
            total += report.update * min(1.0, CLIP / max(norm, 1e-12))
        sums.append(total)
    return tuple(sums)


def furthest(name: str) -> float:
    pairs = zip(sums_of_the_others(name, False), sums_of_the_others(name, True), strict=True)
    return max(float(np.linalg.norm(one - other)) for one, other in pairs)


def claimed(name: str) -> tuple[float, float]:
    """The epsilon of the model for one client after one report, and that of model and metadata."""
    made = simulation(name, False)
    (row,) = privacy_rows(made.method, made.settings, [WHO], {WHO: 1})
    assert row.model_epsilon is not None
    assert row.whole_epsilon is not None
    return row.model_epsilon, row.whole_epsilon


@pytest.mark.parametrize("name", METHODS)
def test_a_finite_epsilon_of_the_model_means_that_one_clients_data_do_not_move_what_the_others_send(name: str) -> None:
    model, _ = claimed(name)
    if math.isfinite(model):
        assert furthest(name) == 0.0


@pytest.mark.parametrize("name", ["fedbalancer", "oort", "canter", "fedavg+1t+powerofchoice"])
def test_where_selection_threshold_or_deadline_react_the_others_move_and_the_figure_is_infinite(name: str) -> None:
    assert furthest(name) > 0.5
    assert claimed(name) == (math.inf, math.inf)


@pytest.mark.parametrize("name", FINITE)
def test_where_nothing_reacts_there_is_a_figure_for_all_who_see_the_models_only(name: str) -> None:
    model, whole = claimed(name)
    assert 0 < model < math.inf == whole
