"""Flower's strategies and mods: supported ones work, others are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower.fakegrid import Clock, FakeGrid, make_context
from flower.phones import Phone, World
from flwr.app import ArrayRecord, Error, Message
from flwr.client import mod as client_mods
from flwr.clientapp import ClientApp
from flwr.clientapp import mod as flower_mods
from flwr.serverapp import strategy as flower_strategies

from fedbalancer import method
from fedbalancer.core.errors import BadSetting, MissingData
from fedbalancer.flower import FlowerAggregator, Strategy, client_app, introduce
from fedbalancer.flower.compat import train_mods_of
from fedbalancer.flower.grid_engine import Waiting

Wrapped = flower_strategies.FedAvg


@pytest.mark.parametrize(
    "strategy",
    [
        flower_strategies.DifferentialPrivacyServerSideFixedClipping(Wrapped(), 1.0, 1.0, 2),
        flower_strategies.DifferentialPrivacyClientSideFixedClipping(Wrapped(), 1.0, 1.0, 2),
        flower_strategies.DifferentialPrivacyServerSideAdaptiveClipping(Wrapped(), 0.1, 10),
        flower_strategies.DifferentialPrivacyClientSideAdaptiveClipping(Wrapped(), 0.1, 10),
        flower_strategies.FedXgbBagging(),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_strategies_that_would_not_do_what_they_say_are_refused(strategy: Any) -> None:
    for given in (lambda: strategy, lambda: FlowerAggregator(strategy)):
        with pytest.raises(BadSetting, match=type(strategy).__name__):
            Strategy(aggregate=given())


def test_arguments_without_effect_are_refused() -> None:
    with pytest.raises(BadSetting, match=r"fraction_train = 0.5 .* clients_per_round"):
        Strategy(aggregate=flower_strategies.FedAdam(fraction_train=0.5))
    with pytest.raises(BadSetting, match="weighted_by_key"):
        Strategy(aggregate=flower_strategies.FedAvg(weighted_by_key="mine"))


class Decaying(flower_strategies.FedAvg):
    """A user's strategy that sends a value to its clients in every round."""

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        config["lr"] = 0.1 / server_round
        return super().configure_train(server_round, arrays, config, grid)


def test_a_configuration_that_would_not_be_called_is_told() -> None:
    with pytest.raises(BadSetting, match=r"Decaying.*train_config"):
        Strategy(aggregate=Decaying())
    World(Phone(0)).start(1, "fedavg+wfa", aggregate=FlowerAggregator(Decaying()))


def test_fedprox_of_flower_is_prox() -> None:
    """Its mu reaches our clients in their policies, and others under Flower's key."""
    seen: list[float] = []

    class Looking(Phone):
        def train(self, message: Message) -> Message:
            seen.append(float(message.content.config_records["config"]["proximal-mu"]))
            return super().train(message)

    phone = Looking(0)
    World(phone).start(1, "fedavg+wfa", aggregate=flower_strategies.FedProx(proximal_mu=0.25))
    assert phone.orders[0].client_policies().mu == 0.25
    assert seen == [0.25]
    with pytest.raises(BadSetting, match=r"mu 0.25 .* 0.5"):
        Strategy("prox+1t", settings={"prox_mu": 0.5}, aggregate=flower_strategies.FedProx(proximal_mu=0.25))


def test_fedprox_of_flower_trains_as_prox_does() -> None:
    pytest.importorskip("torch")
    plain, flowers = trained("fedavg+wfa"), trained("fedavg+wfa", aggregate=flower_strategies.FedProx(proximal_mu=2.0))
    ours = trained(method("fedavg+wfa", mu=2.0))
    assert np.abs(flowers - plain).max() > 1e-3
    assert flowers == pytest.approx(ours, abs=1e-6)


@pytest.mark.parametrize("name", ["LocalDpMod", "fixedclipping_mod", "adaptiveclipping_mod"])
def test_privacy_on_a_whole_client_app_is_refused_by_name(name: str) -> None:
    mod = flower_mods.LocalDpMod(1.0, 1.0, 1.0, 0.1) if name == "LocalDpMod" else getattr(flower_mods, name)
    with pytest.raises(BadSetting, match=f"{name}.*app.train"):
        introduce(ClientApp(mods=[mod]), size=lambda context: 3)
    introduce(ClientApp(mods=[flower_mods.message_size_mod]), size=lambda context: 3)


@pytest.mark.parametrize("name", ["fixedclipping_mod", "adaptiveclipping_mod"])
def test_clipping_that_nobody_sends_a_norm_for_is_refused(name: str) -> None:
    with pytest.raises(BadSetting, match=name):
        client_app(lambda: None, lambda context: ([], []), mods=[getattr(flower_mods, name)])


@pytest.mark.parametrize("name", ["secagg_mod", "secaggplus_mod"])
@pytest.mark.parametrize("where", ["app", "train", "client_app"])
def test_secure_aggregation_of_clients_is_refused_by_name(name: str, where: str) -> None:
    """On a train function of the user's own it is seen at the greeting, when the app is whole."""
    mod = getattr(client_mods, name)
    if where == "client_app":
        with pytest.raises(BadSetting, match=f"{name} is refused"):
            client_app(lambda: None, lambda context: ([], []), mods=[mod])
        return
    app = ClientApp(mods=[mod] if where == "app" else [flower_mods.message_size_mod])
    if where == "app":
        with pytest.raises(BadSetting, match=f"{name} is refused"):
            introduce(app, size=lambda context: 3)
        return
    introduce(app, size=lambda context: 3)
    app.train(mods=[flower_mods.arrays_size_mod, mod])(lambda message, context: message)

    def node(message: Message, sent_s: float) -> list[tuple[float, Message]]:
        try:
            return [(sent_s, app(message, make_context(2)))]
        except BadSetting as error:
            reply = Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)
            return [(sent_s, reply)]

    world = World()
    world.grid.nodes[2] = node
    with pytest.raises(MissingData, match=f"1 of 1 nodes cannot introduce themselves.*{name} is refused"):
        world.start(1, min_clients=1, clients_per_round=1)


def test_secure_aggregation_of_the_server_is_refused_by_name() -> None:
    from flwr.server.workflow import SecAggPlusWorkflow

    with pytest.raises(BadSetting, match=r"SecAggPlusWorkflow is refused.*deadline"):
        Strategy(aggregate=SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2))


def test_mods_around_a_train_function_are_found() -> None:
    app = ClientApp(mods=[flower_mods.message_size_mod])
    app.train(mods=[flower_mods.arrays_size_mod])(lambda message, context: message)
    assert train_mods_of(app) == [flower_mods.message_size_mod, flower_mods.arrays_size_mod]


def test_local_privacy_clips_what_a_client_sends() -> None:
    pytest.importorskip("torch")
    free = trained("fedavg+wfa")
    clip = flower_mods.LocalDpMod(clipping_norm=1e-3, sensitivity=0.0, epsilon=1.0, delta=0.1)
    clipped = trained("fedavg+wfa", mods=[clip])
    assert np.linalg.norm(free) > 0.05
    assert np.linalg.norm(clipped) == pytest.approx(1e-3, rel=1e-3)
    noisy = trained("fedavg+wfa", mods=[flower_mods.LocalDpMod(1e-3, 1.0, 1.0, 0.1)])
    assert np.linalg.norm(noisy) > 1.0


def test_a_client_that_stopped_can_say_so_through_a_mod() -> None:
    pytest.importorskip("torch")
    told: list[str] = []
    clip = flower_mods.LocalDpMod(clipping_norm=1e-3, sensitivity=0.0, epsilon=1.0, delta=0.1)
    hold = {"hold": lambda context, round: Held(0.001 if round == 0 else 0.4)}
    trained("fedavg+1t", mods=[clip], log=lambda event, **fields: told.append(event), **hold)
    assert "stopped at the deadline" in told
    assert "error" not in told


def test_nodes_that_cannot_introduce_themselves_end_the_run() -> None:
    """They used to be asked for an hour."""

    def fails(message: Message, sent_s: float) -> Any:
        return [(sent_s + 1.0, Message(Error(2, "no greeting\nfrom here"), reply_to=message))]

    world = World(Phone(0))
    world.grid.nodes |= {7: fails}
    with pytest.raises(MissingData, match=r"1 of 2 nodes .* node 7: error 2: no greeting from here"):
        world.start(1, min_clients=2)
    assert world.clock() < 120.0


class Held:
    """A device whose batches take this long."""

    download_s = upload_s = 0.0

    def __init__(self, batch_s: float) -> None:
        self.batch_s = batch_s


def trained(method: Any, mods: Any = (), log: Any = None, hold: Any = None, **options: Any) -> Any:
    """Return the change of the model by one round of one torch client."""
    import torch

    def net() -> Any:
        torch.manual_seed(0)
        return torch.nn.Linear(4, 3)

    def data(context: Any) -> Any:
        rng = np.random.default_rng(0)
        return rng.normal(size=(40, 4)).astype(np.float32), rng.integers(0, 3, 40)

    app, clock, context = client_app(net, data, mods=mods, hold=hold), Clock(), make_context(2, **{"partition-id": 0})
    grid = FakeGrid(clock, {2: lambda message, sent_s: [(sent_s + 0.1, app(message, context))]})
    waiting = Waiting(clock=clock, sleep=clock.sleep, background=False)
    given: dict[str, Any] = {"clients_per_round": 1, "epochs": 5, "batch_size": 8, "learning_rate": 0.2}
    strategy = Strategy(method, waiting=waiting, min_clients=1, log=log, **given, **options)
    start = ArrayRecord(net().state_dict())
    result = strategy.start(grid, start, 1)
    return np.concatenate([(result.arrays[name].numpy() - start[name].numpy()).ravel() for name in start])
