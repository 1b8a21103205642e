"""Methods with a policy in slot `train` or `part`, run in the simulator: costs, state, resume and workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments.tinytask import load, wide
from scaffold import Ditto, FirstRows, Scaffold, ScaffoldServer

import fedbalancer as fb
from fedbalancer.client.training import FineTuning, LocalLayers
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.wrapping import Wrapping
from fedbalancer.experiments.execute import resume
from fedbalancer.experiments.simulation import build
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.server.aggregate import Krum, WeightedMean

SCAFFOLD = "fedavg+wfa[aggregate=scaffold:ScaffoldServer,train=scaffold:Scaffold]"


def run(method: Any, **options: Any) -> Any:
    return fb.run(load(), method, rounds=3, **options)


def scaffold() -> Any:
    return fb.method("fedavg+wfa", train=Scaffold(), aggregate=ScaffoldServer())


def test_arrays_are_charged_by_their_bytes() -> None:
    plain, ours = run("fedavg+wfa").rounds, run(scaffold()).rounds
    assert (ours["down_bytes"] == 2 * plain["down_bytes"]).all()
    assert (ours["up_bytes"] == 2 * plain["up_bytes"]).all()
    assert ours["end_s"][-1] > plain["end_s"][-1]


def test_equal_clients_with_one_step_follow_the_closed_form() -> None:
    """All clients have the same data and take one step: the variates are minus the gradient, and cancel out."""
    data = load().clients["c0"]
    task = load(clients=dict.fromkeys(("a", "b"), data), clients_per_round=2, epochs=1, batch_size=20)
    ours, plain = (fb.run(task, method, rounds=4) for method in (scaffold(), "fedavg+wfa"))
    np.testing.assert_allclose(ours.weights, plain.weights, atol=1e-6)


def test_two_steps_of_different_clients_follow_the_formula() -> None:
    """One round of two clients, by the paper's formulas on the gradients of the plain trainer."""
    task = load(clients_per_round=2, epochs=1, batch_size=100, clients={n: load().clients[n] for n in ("c0", "c1")})
    simulation = build(RunSpec(task=task, method=scaffold(), seed=0), task)
    trainer, state = simulation.executor, simulation.server.init(simulation.executor.initial_weights(0))
    c, own, x, rate = 0.0, {"c0": 0.0, "c1": 0.0}, state.weights.astype(np.float64), task.learning_rate
    for number in range(3):
        plan = simulation.server.plan(state, np.arange(2))
        result = simulation.engine.run(plan, state.weights, float(100 * number))
        sizes = {client: len(task.clients[client][1]) for client in own}
        moved, change = 0.0, 0.0
        for client, variate in own.items():
            gradient = -_one_step(trainer, state.weights, client, sizes[client]) / rate
            update = -rate * (gradient - variate + c)
            fresh = variate - c - update / rate
            moved, change = moved + sizes[client] * update, change + (fresh - variate) / 2
            own[client] = fresh
        x, c = x + moved / sum(sizes.values()), c + change
        state = simulation.server.observe(state, result)
        np.testing.assert_allclose(state.weights, x, atol=1e-5)
        np.testing.assert_allclose(state.aggregate.c, c, atol=1e-4)


def _one_step(executor: Any, weights: Any, client: str, size: int) -> Any:
    from fedbalancer.core.types import ClientWork

    work = ClientWork(client, np.arange(size), 1, 100, load().learning_rate, 0.0, None, 0)
    return executor.train(weights, [work])[0].update.astype(np.float64)


@pytest.mark.parametrize("late", ["+wfa", "+1t+late"])
def test_a_resumed_run_ends_with_the_same_bytes(tmp_path: Path, late: str) -> None:
    name = SCAFFOLD.replace("fedavg+wfa", f"fedavg{late}")
    whole = fb.run("experiments.tinytask:load", name, rounds=5, out=tmp_path / "whole")
    rounds = iter(range(2))
    fb.run(
        "experiments.tinytask:load", name, rounds=5, out=tmp_path / "cut", settings={"checkpoint_s": 0},
        stopped=lambda: next(rounds, None) is None,
    )  # fmt: skip
    again = resume(tmp_path / "cut", trust=True)
    assert again.weights.tobytes() == whole.weights.tobytes()
    assert again.rounds.equals(whole.rounds)


@pytest.mark.parametrize("part", [False, True])
def test_a_pool_trains_the_same_bytes(part: bool) -> None:
    """Also with a wide model, whose arrays travel in shared memory."""
    method = fb.method("fedavg+wfa", part=LocalLayers("*bias"), train=Ditto()) if part else scaffold()
    one, two = (fb.run(load(model=wide), method, rounds=2, workers=count) for count in (1, 2))
    assert one.weights.tobytes() == two.weights.tobytes()


def test_smaller_parts_are_cheaper_and_averaged_over_those_that_trained_them() -> None:
    plain, ours = run("fedavg+wfa").rounds, run(fb.method("fedavg+wfa", part=FirstRows())).rounds
    assert (ours["down_bytes"] <= plain["down_bytes"]).all()
    assert ours["down_bytes"].sum() < plain["down_bytes"].sum()
    assert ours["end_s"][-1] < plain["end_s"][-1]


def test_local_layers_do_not_change_on_the_server() -> None:
    method = fb.method("fedavg+wfa", part=LocalLayers("bias"))
    task = load()
    simulation = build(RunSpec(task=task, method=method, seed=0), task)
    start, end = simulation.executor.initial_weights(0), run(method).weights
    bias = simulation.executor.layout.spans["bias"]
    np.testing.assert_array_equal(start[bias], end[bias])
    assert not np.array_equal(start, end)


def test_second_gradients_are_charged() -> None:
    plain, ours = run("fedavg+wfa").clients, run(fb.method("fedavg+wfa", train=Ditto())).clients
    np.testing.assert_allclose(ours["train_s"].to_numpy(), 2 * plain["train_s"].to_numpy())


def test_fine_tuning_changes_the_evaluation_of_clients_only() -> None:
    plain, ours = run("fedavg+wfa"), run(fb.method("fedavg+wfa", train=FineTuning(epochs=20)))
    assert plain.weights.tobytes() == ours.weights.tobytes()
    assert ours.population["accuracy"].mean() > plain.population["accuracy"].mean()


def test_an_aggregator_that_sends_nothing_is_refused() -> None:
    with pytest.raises(BadSetting, match=r"order_arrays returned no array 'c'.*Scaffold.down_arrays"):
        run(fb.method("fedavg+wfa", train=Scaffold()))


def test_an_aggregator_that_sends_what_no_client_needs_is_refused() -> None:
    message = r"order_arrays returned array 'c', which is not declared \(declared: none\); PlainTraining.down_arrays"
    with pytest.raises(BadSetting, match=message):
        run(fb.method("fedavg+wfa", aggregate=ScaffoldServer()))


def test_aggregators_that_would_average_parts_wrongly_are_refused() -> None:
    with pytest.raises(BadSetting, match="FirstRows trains parts of the model, which Krum does not average"):
        fb.method("fedavg+wfa", part=FirstRows(), aggregate=Krum())
    with pytest.raises(BadSetting, match="encodes whole updates"):
        fb.method("fedavg+wfa+graddrop", part=FirstRows())


def test_wrappers_forward_the_arrays() -> None:
    class Wrapper(Wrapping, WeightedMean):
        def __init__(self, inner: Any) -> None:
            object.__setattr__(self, "inner", inner)

        def unwrapped(self, state: Any) -> Any:
            return state

        def init(self, setup: Any) -> Any:
            return self.inner.init(setup)

        def aggregate(self, setup: Any, state: Any, reports: Any) -> Any:
            return self.inner.aggregate(setup, state, reports)

    task = load()
    simulation = build(RunSpec(task=task, method=scaffold(), seed=0), task)
    state = simulation.server.init(np.zeros(10, dtype=np.float32))
    arrays = Wrapper(ScaffoldServer()).order_arrays(simulation.server.setup, state)
    assert arrays["c"].shape == (10,)


def test_timing_only_runs_have_the_same_clock() -> None:
    assert run(scaffold(), timing_only=True).rounds["end_s"][-1] == run(scaffold()).rounds["end_s"][-1]


def test_the_manifest_names_the_policies_that_need_the_plain_backend(tmp_path: Path) -> None:
    fb.run("experiments.tinytask:load", SCAFFOLD, rounds=1, out=tmp_path / "run")
    training = json.loads((tmp_path / "run" / "manifest.json").read_text())["training"]
    assert training["path"] == "plain"
    assert training["why"] == "the method changes local training (train Scaffold)"
