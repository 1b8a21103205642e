"""SCAFFOLD, FedDyn and MIFA against their papers' pseudo-code, written out for softmax regression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from experiments.tinytask import load
from scaffold import Scaffold as TutorialScaffold
from scaffold import ScaffoldServer as TutorialServer

import fedbalancer as fb
from fedbalancer.client.training import MIFA, FedDyn, LocalLayers, Scaffold
from fedbalancer.core.errors import BadSetting
from fedbalancer.experiments.execute import resume
from fedbalancer.experiments.simulation import build
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.server.aggregate import FedDynServer, MIFAServer, ScaffoldServer

pytest.importorskip("torch", reason="torch is not installed")

ROUNDS, STEPS, RATE = 5, 3, 0.1
Gradient = Callable[[str, Any], Any]
Update = Callable[[list[str], Any, Gradient, dict[str, Any]], Any]


def gradient_of(task: fb.Task) -> Gradient:
    """The gradient of a client's mean cross-entropy, for a linear model whose vector is its weight, then its bias."""

    def gradient(client: str, x: Any) -> Any:
        features, labels = (np.asarray(part) for part in task.clients[client])
        classes, width = len(x) // (features.shape[1] + 1), features.shape[1]
        scores = features @ x[: classes * width].reshape(classes, width).T + x[classes * width :]
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        chances[np.arange(len(labels)), labels] -= 1
        return np.concatenate([(chances.T @ features).ravel(), chances.sum(axis=0)]) / len(labels)

    return gradient


def scaffold(sampled: list[str], x: Any, gradient: Gradient, memory: dict[str, Any], count: int) -> Any:
    """Algorithm 1 of the paper, option II, with a global rate of 1."""
    c, moved, changed = memory.setdefault("c", np.zeros_like(x)), 0.0, 0.0
    for i in sampled:
        c_i, y = memory.get(i, np.zeros_like(x)), x.copy()
        for _ in range(STEPS):
            y -= RATE * (gradient(i, y) - c_i + c)
        c_i_plus = c_i - c + (x - y) / (STEPS * RATE)
        moved, changed = moved + (y - x) / len(sampled), changed + (c_i_plus - c_i) / len(sampled)
        memory[i] = c_i_plus
    memory["c"] = c + len(sampled) / count * changed
    return x + moved


def feddyn(sampled: list[str], x: Any, gradient: Gradient, memory: dict[str, Any], count: int) -> Any:
    """Algorithm 1 of the paper, whose inner minimisation is gradient descent."""
    alpha, h, models = 0.3, memory.setdefault("h", np.zeros_like(x)), []
    for i in sampled:
        g, y = memory.get(i, np.zeros_like(x)), x.copy()
        for _ in range(STEPS):
            y -= RATE * (gradient(i, y) - g + alpha * (y - x))
        memory[i] = g - alpha * (y - x)
        models.append(y)
    memory["h"] = h - alpha / count * sum(y - x for y in models)
    return sum(models) / len(models) - memory["h"] / alpha


def mifa(sampled: list[str], x: Any, gradient: Gradient, memory: dict[str, Any], count: int) -> Any:
    """Algorithm 1 of the paper, over the clients that have reported."""
    for i in sampled:
        y = x.copy()
        for _ in range(STEPS):
            y -= RATE * gradient(i, y)
        memory[i] = (x - y) / RATE
    return x - RATE * sum(memory.values()) / len(memory)


METHODS = {
    "scaffold": (scaffold, "scaffold[deadline=inf]"),
    "feddyn": (feddyn, "feddyn[deadline=inf,train.alpha=.3]"),
    "mifa": (mifa, "mifa[deadline=inf]"),
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", METHODS)
def test_follows_the_papers_pseudo_code_with_partial_participation(name: str, seed: int) -> None:
    step, method = METHODS[name]
    task = load(clients_per_round=3, epochs=STEPS, batch_size=1000, learning_rate=RATE)
    simulation = build(RunSpec(task=task, method=method, seed=seed), task)
    state = simulation.server.init(simulation.executor.initial_weights(seed))
    x, memory, gradient, cohorts = state.weights.astype(float), {}, gradient_of(task), set()
    for number in range(ROUNDS):
        plan = simulation.server.plan(state, np.arange(len(task.sizes)))
        state = simulation.server.observe(state, simulation.engine.run(plan, state.weights, 100.0 * number))
        x = step(list(plan.cohort), x, gradient, memory, len(task.sizes))
        cohorts.add(plan.cohort)
        np.testing.assert_allclose(state.weights, x, atol=2e-5)
    assert len(cohorts) > 1


def test_the_built_in_scaffold_is_that_of_the_tutorial() -> None:
    task = load()
    assert len(set(task.sizes.values())) > 1  # the tutorial weighs clients by their samples
    features, labels = task.clients["c0"]
    rng = np.random.default_rng(0)
    equal = load(clients={f"c{n}": (features + rng.normal(size=features.shape).astype("f"), labels) for n in range(4)})
    ours = fb.run(equal, "scaffold[deadline=inf]", rounds=4)
    theirs = fb.run(equal, fb.method("fedavg+wfa", train=TutorialScaffold(), aggregate=TutorialServer()), rounds=4)
    np.testing.assert_allclose(ours.weights, theirs.weights, atol=1e-6)
    assert ours.rounds["end_s"].equals(theirs.rounds["end_s"])


@pytest.mark.parametrize("name", METHODS)
def test_the_state_survives_a_resume(name: str, tmp_path: Any) -> None:
    whole = fb.run("experiments.tinytask:load", name, rounds=4)
    rounds = iter(range(2))
    fb.run(
        "experiments.tinytask:load", name, rounds=4, out=tmp_path / "cut", settings={"checkpoint_s": 0},
        stopped=lambda: next(rounds, None) is None,
    )  # fmt: skip
    again = resume(tmp_path / "cut", trust=True)
    assert again.weights.tobytes() == whole.weights.tobytes()


def test_only_scaffold_sends_more_than_the_model() -> None:
    sent = {name: fb.run(load(), f"{name}[deadline=inf]", rounds=2).rounds["up_bytes"].sum() for name in METHODS}
    plain = fb.run(load(), "fedavg+wfa", rounds=2).rounds["up_bytes"].sum()
    assert sent == {"scaffold": 2 * plain, "feddyn": plain, "mifa": plain}


@pytest.mark.parametrize(
    ("train", "aggregate"), [(Scaffold(), ScaffoldServer()), (FedDyn(), FedDynServer()), (MIFA(), MIFAServer())]
)
def test_halves_of_a_method_are_refused(train: Any, aggregate: Any) -> None:
    with pytest.raises(BadSetting, match=f"works with aggregate {type(aggregate).__name__} only, not with Weighted"):
        fb.method("fedavg+1t", train=train)
    with pytest.raises(BadSetting, match=f"needs train {type(train).__name__}, not PlainTraining"):
        fb.method("fedavg+1t", aggregate=aggregate)
    with pytest.raises(BadSetting, match="works with the whole model only"):
        fb.method("fedavg+1t", train=train, aggregate=aggregate, part=LocalLayers("bias"))


@pytest.mark.parametrize("name", ["feddyn", "mifa"])
def test_running_statistics_are_refused(name: str) -> None:
    import torch

    task = load(model=lambda: torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)))
    with pytest.raises(BadSetting, match="cannot train a model with running statistics"):
        fb.run(task, name, rounds=1)
