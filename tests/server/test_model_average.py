"""Which model is handed out: the last, or an average of the last ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import make_report, make_result, make_setup, make_state

import fedbalancer as fb
from fedbalancer.core.types import ServerState
from fedbalancer.methods.table import method
from fedbalancer.server.model_average import AveragedModel, LastModel
from fedbalancer.server.server import Server
from fedbalancer.testing import check_policy


def after(policy: AveragedModel, models: list[float]) -> ServerState:
    state = make_state(weights=np.zeros(1, dtype=np.float32), model_average=policy.init(make_setup()))
    for value in models:
        weights = np.array([value], dtype=np.float32)
        state = replace(state, model_average=policy.after(make_setup(), state, weights), weights=weights)
    return state


@pytest.mark.parametrize("policy", [LastModel(), AveragedModel()], ids=str)
def test_keeps_the_contract(policy: LastModel | AveragedModel) -> None:
    assert check_policy(policy) == "model_average"


def test_before_the_first_round_it_is_the_model_as_it_is() -> None:
    assert AveragedModel().model(after(AveragedModel(), [])).tolist() == [0.0]


def test_without_decay_it_is_the_mean_of_all_models() -> None:
    assert AveragedModel(eta=0.0).model(after(AveragedModel(eta=0.0), [1.0, 2.0, 6.0])).tolist() == [3.0]


def test_of_a_hundred_models_about_the_last_ninth_counts() -> None:
    values = np.arange(100.0)
    actual = float(AveragedModel().model(after(AveragedModel(), values.tolist()))[0])
    assert 85 < actual < 95
    noise = np.random.default_rng(0).normal(size=4000)
    averaged = [
        float(AveragedModel().model(after(AveragedModel(), part.tolist()))[0]) for part in noise.reshape(40, 100)
    ]
    assert np.std(averaged) < 0.45  # of noise of 1


def test_clients_go_on_from_the_last_weights_and_a_round_without_a_report_changes_nothing() -> None:
    server = Server(method("fedavg+1t+averaged").server, make_setup())
    state = server.init(np.zeros(2, dtype=np.float32))
    for number in range(3):
        state = server.observe(state, make_result([make_report("c0", [1.0, 1.0], 1.0)]))
        assert state.weights.tolist() == [number + 1.0] * 2
    assert 2.0 < server.model(state)[0] < 3.0
    assert server.observe(state, make_result(missing=["c0"])).model_average is state.model_average


def test_a_run_evaluates_and_hands_out_the_average() -> None:
    last, averaged = (fb.run("synthetic", name, rounds=6, users=12) for name in ("fedavg+wfa", "fedavg+wfa+averaged"))
    assert not np.array_equal(last.weights, averaged.weights)
    assert last.rounds["end_s"].to_list() == averaged.rounds["end_s"].to_list()
    assert last.evals["loss"][-1] != averaged.evals["loss"][-1]
