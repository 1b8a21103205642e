"""Methods of the slots `train` and `part` on Flower: the same models as in the simulator, and hostile arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")
pytest.importorskip("torch", reason="torch is not installed")

from builders import make_order
from flower.fakegrid import make_context
from flower.test_client_app import Nodes, net, samples
from flower.test_fuzz import LAYOUT, SIZE, WEIGHTS, Reply, array, sound_reply
from flwr.app import Array, ArrayRecord
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scaffold import Ditto, FirstRows, Scaffold

import fedbalancer as fb
from fedbalancer.client.compress import NoCompression
from fedbalancer.client.round import ClientMemory
from fedbalancer.client.summary import LossStatistics
from fedbalancer.client.training import LOCAL, FineTuning, LocalLayers
from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.core.types import Layout
from fedbalancer.experiments.simulation import build
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.flower import Strategy
from fedbalancer.flower.memory import MemoryStore, SavedMemory
from fedbalancer.flower.messages import METHOD_ARRAYS
from fedbalancer.flower.model_arrays import InvalidMessage, ModelLayout, reorder
from fedbalancer.flower.reading import Expected, unpack
from fedbalancer.server.loop import rounds

CLIENTS, ROUNDS = 3, 2
METHODS = {
    "scaffold": fb.method("scaffold[deadline=inf]"),
    "ditto with local layers": fb.method("fedavg+wfa", train=Ditto(), part=LocalLayers("3.* 1.*")),
    "parts": fb.method("fedavg+wfa", part=FirstRows()),
}


def simulated(own: Any, weights: Any, layout: Layout) -> Any:
    """The model of the simulator, in the order of Flower's layout."""
    data = {f"client-{n}": samples(make_context(n, **{"partition-id": n})) for n in range(CLIENTS)}
    task = fb.Task(
        clients=data, test=data["client-0"], model=net, batch_size=8, epochs=2, learning_rate=0.1,
        clients_per_round=CLIENTS,
    )  # fmt: skip
    simulation = build(RunSpec(task=task, method=own, seed=0, backend="plain"), task)
    state = simulation.server.init(reorder(weights, layout, simulation.executor.layout))
    for after, _ in rounds(simulation.server, simulation.engine, state, lambda s: s.round >= ROUNDS):
        state = after
    return reorder(state.weights, simulation.executor.layout, layout), simulation


@pytest.mark.parametrize("name", ["scaffold", "ditto with local layers"])
def test_both_worlds_train_the_same_model_and_keep_the_same_state(name: str) -> None:
    own = METHODS[name]
    nodes = Nodes(CLIENTS, method=own)
    sent, result = nodes.start(own, ROUNDS, min_clients=CLIENTS)
    layout = ModelLayout.of(sent)
    weights, simulation = simulated(own, layout.flat(sent), layout.layout)
    assert layout.layout != simulation.executor.layout  # a batch norm: the orders differ
    assert layout.flat(result.arrays) == pytest.approx(weights, abs=1e-5)
    assert not np.allclose(weights, layout.flat(sent))
    for number, context in enumerate(nodes.contexts):
        kept = {name: each.numpy() for name, each in context.state.array_records["fedbalancer.memory"].items()}
        wanted = simulation.engine.memory[f"client-{number}"].state
        assert (LOCAL in wanted) == (not own.part.is_whole)
        for key, values in wanted.items():
            assert kept[f"pending_state.{key}"] == pytest.approx(values, abs=1e-4)


def test_only_the_part_is_uploaded() -> None:
    own = METHODS["parts"]
    nodes = Nodes(CLIENTS, method=own)
    sent, result = nodes.start(own, 1, min_clients=CLIENTS)
    layout = ModelLayout.of(sent)
    sizes = {len(reply.content.array_records["arrays"]["fedbalancer.vector"].numpy()) for reply in nodes.trained()}
    whole = layout.layout.parameters
    assert sizes <= {whole, whole // 2}
    assert whole // 2 in sizes
    assert not np.allclose(layout.flat(result.arrays), layout.flat(sent))


@pytest.mark.parametrize("policy", ["local", "average"])
def test_running_statistics_follow_the_policy_of_the_server(policy: str) -> None:
    """The client's app has no method of its own: the order is enough."""
    nodes = Nodes(CLIENTS)
    sent, result = nodes.start("fedavg+wfa", ROUNDS, min_clients=CLIENTS, settings={"batch_norm": policy})
    moved = {name for name in sent if not np.array_equal(result.arrays[name].numpy(), sent[name].numpy())}
    statistics = {"1.running_mean", "1.running_var"}
    moved -= {"0.bias"}  # batch norm subtracts it again: its gradient is rounding only
    assert moved == {"0.weight", "1.weight", "1.bias", "3.weight", "3.bias"} | (
        statistics if policy == "average" else set()
    )
    layout = ModelLayout.of(sent).layout
    sizes = {len(reply.content.array_records["arrays"]["fedbalancer.vector"].numpy()) for reply in nodes.trained()}
    assert sizes == {layout.parameters - (16 if policy == "local" else 0)}
    kept = [context.state.array_records["fedbalancer.memory"] for context in nodes.contexts]
    assert all((f"pending_state.{LOCAL}" in each) == (policy == "local") for each in kept)
    with pytest.raises(BadData, match="batch_norm is 'forbid'"):  # Flower makes it an error of the client
        Nodes(1).start("fedavg+wfa", 1, settings={"batch_norm": "forbid"})


def test_what_flower_cannot_do_is_refused_by_name() -> None:
    with pytest.raises(BadSetting, match="train FineTuning fine-tunes before evaluations"):
        Strategy(fb.method("fedavg+wfa", train=FineTuning()))
    with pytest.raises(BadSetting, match="LocalLayers keeps layers on the clients, and evaluations on Flower"):
        Strategy(METHODS["ditto with local layers"], federated_evaluate=True)
    with pytest.raises(BadSetting, match=r"Scaffold\.down_arrays declares what the clients need"):
        Nodes(1, method=METHODS["scaffold"]).start(fb.method("fedavg+wfa", train=Scaffold()), 1)


def test_state_survives_a_restart() -> None:
    own, later = {"c": np.ones(3, dtype=np.float32)}, {"c": np.full(3, 2, dtype=np.float32)}
    store = MemoryStore(make_context(1), "run", "ann", 3)
    store.save(SavedMemory(ClientMemory(state=own), ClientMemory(state=later), 4))
    found = MemoryStore(make_context(9), "run", "ann", 3).load()
    assert found.confirmed(3).state["c"].tolist() == [1.0] * 3
    assert found.confirmed(4).state["c"].tolist() == [2.0] * 3


def expected(**changes: Any) -> Expected:
    return Expected("c0", SIZE, make_order(), WEIGHTS, LAYOUT, NoCompression(), LossStatistics(), **changes)


def vector(values: Any) -> Array:
    return Array(np.asarray(values, dtype=np.float32))


def test_declared_arrays_are_read() -> None:
    content = sound_reply(LossStatistics(), NoCompression())
    content[METHOD_ARRAYS] = ArrayRecord({"c": vector([1, 2, 3, 4, 5, 6])})
    report, _ = unpack(Reply(content), expected(arrays={"c": (6,)}), 20.0)  # type: ignore[arg-type]
    assert report is not None
    assert report.arrays["c"].tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({}, "no array 'c', which is declared"),
        ({"c": vector([1.0] * 6), "evil": vector([1.0])}, "array 'evil', which is not declared"),
        ({"c": vector([1.0] * 5)}, r"'c' is float32 \(5,\) in place of float32 \(6,\)"),
        ({"c": Array(np.ones(6))}, "'c' is float64"),
        ({"c": vector([np.nan] * 6)}, "'c' with a value that is not a finite number"),
        ({"c": vector([1e9] * 6)}, "must be at most 1e"),
    ],
)
def test_other_arrays_are_invalid(record: dict[str, Array], why: str) -> None:
    content = sound_reply(LossStatistics(), NoCompression())
    content[METHOD_ARRAYS] = ArrayRecord(record)
    with pytest.raises(InvalidMessage, match=why):
        unpack(Reply(content), expected(arrays={"c": (6,)}), 20.0)  # type: ignore[arg-type]


def test_undeclared_arrays_are_invalid() -> None:
    content = sound_reply(LossStatistics(), NoCompression())
    content[METHOD_ARRAYS] = ArrayRecord({"c": vector([1.0])})
    with pytest.raises(InvalidMessage, match=r"array 'c', which is not declared \(declared: none\)"):
        unpack(Reply(content), expected(), 20.0)  # type: ignore[arg-type]


def test_an_update_of_another_part_is_invalid() -> None:
    mask = np.array([True, False, True, False, True, False])
    with pytest.raises(InvalidMessage, match=r"in place of float32 \(3,\)"):
        unpack(Reply(sound_reply(LossStatistics(), NoCompression())), expected(part=mask), 20.0)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_arrays_crash_the_server_or_add_names(data: Any) -> None:
    content = sound_reply(LossStatistics(), NoCompression())
    names = data.draw(st.lists(st.sampled_from(["c", "d", "", "x" * 300]), max_size=3, unique=True))
    content[METHOD_ARRAYS] = ArrayRecord({name: array(data.draw, 0) for name in names})
    try:
        report, _ = unpack(Reply(content), expected(arrays={"c": (6,)}), 20.0)  # type: ignore[arg-type]
    except InvalidMessage:
        return
    assert report is not None
    assert set(report.arrays) == {"c"}
    assert np.isfinite(report.arrays["c"]).all()
