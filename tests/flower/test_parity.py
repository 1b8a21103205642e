"""The same round in both worlds: the simulator's engine and the shipped `client_app` behind Flower's engine, over all
methods. One set of draws says what every client's device takes; torch trains for real on both sides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")
pytest.importorskip("torch", reason="torch is not installed")

import torch
from flower.fakegrid import Clock, FakeGrid, make_context
from flwr.app import Message

import fedbalancer.client.live
import fedbalancer.flower.client_apps
import fedbalancer.flower.introduction
from fedbalancer.client.summary import coarse
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.settings import resolve
from fedbalancer.core.types import Ledger, RoundResult
from fedbalancer.data import Task
from fedbalancer.flower import client_app
from fedbalancer.flower.grid_engine import GridEngine, Waiting
from fedbalancer.flower.ledger import TransportTimes, make_ledger
from fedbalancer.flower.messages import HELLO
from fedbalancer.flower.model_arrays import ModelLayout
from fedbalancer.methods.table import BASES, MODIFIERS, Method, method_of_run, setup_of
from fedbalancer.server.loop import rounds
from fedbalancer.server.server import Server
from fedbalancer.simulation.devices import AlwaysOn, DeviceDraw
from fedbalancer.simulation.devices.models import Replay
from fedbalancer.simulation.engine import SimulatedEngine
from fedbalancer.simulation.executors import InlineExecutor
from fedbalancer.simulation.local_costs import needs_costs
from fedbalancer.training.trainer import TorchTrainer

ROUNDS, CLIENTS, TICK, SEED = 16, 12, 1 / 1024, 5
SETTINGS = resolve(
    {"clients_per_round": 5, "epochs": 4, "batch_size": 8, "w": 3, "lss": 0.2, "deadline.gate": 0.3, "prox_mu": 0.1,
     "compress.rank": 2, "learning_rate": 0.1}
)  # fmt: skip


def net() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


@dataclass(frozen=True)
class Devices:
    """Who has what data, and what every device takes in every round. All seconds are multiples of a power of two, so
    that no order of adding them up rounds differently."""

    data: dict[str, Any]
    network_s: dict[str, float]
    draws: dict[tuple[int, str], DeviceDraw]

    @classmethod
    def make(cls) -> Devices:
        rng = np.random.default_rng(3)

        def ticks(low: float, high: float) -> float:
            return int(rng.integers(int(low / TICK), int(high / TICK))) * TICK

        data, network_s, draws = {}, {}, {}
        for number in range(CLIENTS):
            client, slow = f"c{number:02d}", 2.0 ** (number % 4)
            y = rng.integers(0, 3, int(rng.integers(20, 120)))
            data[client] = ((rng.normal(size=(len(y), 6)) + 2 * np.eye(3, 6)[y]).astype(np.float32), y)
            network_s[client] = ticks(2, 6)
            for round in range(ROUNDS + 1):
                draws[round, client] = DeviceDraw(ticks(0.1 * slow, 0.4 * slow), ticks(0.5, 4), ticks(0.5, 4))
        return cls(data, network_s, draws)

    def sampled(self, client: str) -> list[float]:
        """The batch latencies from before the first round."""
        return [self.draws[0, client].batch_s] * SETTINGS.latency_samples


class KnownWays(TransportTimes):
    """A server that knows how long the ways of this round take, as the simulated clients do."""

    def __init__(self, devices: Devices) -> None:
        super().__init__()
        self.devices = devices

    def budget_s(self, client: str, round: int, deadline_s: float) -> float:
        draw = self.devices.draws[round, client]
        return deadline_s - draw.download_s - draw.upload_s


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def devices() -> Devices:
    return Devices.make()


@pytest.fixture(scope="module")
def trainer(devices: Devices) -> TorchTrainer:
    return TorchTrainer(Task(clients=devices.data, test=devices.data["c00"], model=net, batch_size=8))


def simulated(own: Method, devices: Devices, trainer: TorchTrainer) -> list[RoundResult]:
    clients = tuple(sorted(devices.data))
    sampled = {client: devices.sampled(client) for client in clients}
    ledger = Ledger.start(
        clients, np.array([len(devices.data[client][1]) for client in clients]),
        np.array([devices.network_s[client] for client in clients]), np.array([sampled[client] for client in clients]),
    )  # fmt: skip
    replay = Replay(devices.draws, sampled, devices.network_s)
    up_bytes = own.client.compress.encoded_bytes(trainer.layout)
    engine = SimulatedEngine(
        own.client,
        ledger,
        InlineExecutor(trainer),
        replay,
        AlwaysOn(),
        trainer.layout.wire_bytes,
        up_bytes=up_bytes,
        window_s=0.0,
        labels=lambda client: devices.data[client][1],
    )
    return played(Server(own.server, setup_of(own, ledger, SETTINGS, SEED)), engine, trainer)


def on_flower(
    own: Method, devices: Devices, trainer: TorchTrainer, monkeypatch: pytest.MonkeyPatch
) -> list[RoundResult]:
    clock, phone = Clock(), SimpleNamespace(now_s=0.0)

    def sleep(seconds: float) -> None:
        phone.now_s += seconds

    # The clients' clock stops while they compute; the simulated devices decide how long they take.
    time = SimpleNamespace(monotonic=lambda: phone.now_s, sleep=sleep)
    for module in (fedbalancer.client.live, fedbalancer.flower.client_apps, fedbalancer.flower.introduction):
        monkeypatch.setattr(module, "time", time)
    app = client_app(
        net, lambda context: devices.data[context.node_config["client-id"]],
        hold=lambda context, round: devices.draws[round, context.node_config["client-id"]],
    )  # fmt: skip

    def node(number: int, client: str) -> Any:
        context = make_context(number, **{"client-id": client})

        def handle(message: Message, sent_s: float) -> list[tuple[float, Message]]:
            phone.now_s = 0.0
            reply = app(message, context)
            greets = message.metadata.message_type == HELLO
            return [(sent_s + (devices.network_s[client] if greets else phone.now_s), reply)]

        return handle

    nodes = {number: node(number, client) for number, client in enumerate(sorted(devices.data), start=2)}
    layout = ModelLayout(trainer.layout, {name: np.dtype(np.float32) for name, _ in trainer.layout}, {})
    waiting = Waiting(settle_s=1e6, timeout_s=1e6, everybody=True, background=False, clock=clock, sleep=clock.sleep)
    engine = GridEngine(
        FakeGrid(clock, nodes), own, layout, SETTINGS, run_key=own.name, waiting=waiting, transport=KnownWays(devices)
    )  # type: ignore[arg-type]
    engine.wait_for_clients(CLIENTS)
    ledger = engine.update_ledger(
        make_ledger([g for _, g in sorted(engine.nodes.greetings.items())]), measure_network=False
    )
    return played(Server(own.server, setup_of(own, ledger, SETTINGS, SEED)), engine, trainer)


class NoWindow:
    """An engine whose selection of clients takes no time: on Flower it takes what the clock says, which is not what is
    compared, and a deadline may go by it."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, *arguments: Any) -> RoundResult:
        return replace(self._engine.run(*arguments), window_s=0.0)


def played(server: Server, engine: Any, trainer: TorchTrainer) -> list[RoundResult]:
    start = server.init(trainer.initial_weights(SEED))
    return [result for _, result in rounds(server, NoWindow(engine), start, lambda state: state.round >= ROUNDS)]


def assert_close(one: Any, other: Any) -> None:
    """Equal but for the rounding of a training whose batches lie elsewhere in memory."""
    for name, value in vars(other).items():
        is_number = isinstance(value, int | float | tuple | np.ndarray)
        assert getattr(one, name) == (pytest.approx(value, rel=1e-4, abs=1e-6) if is_number else value), name


def all_methods() -> list[str]:
    """Every base, and every modifier on the first of some bases that it goes together with; but for forecasts, which on
    Flower are the server's, for methods of the slots `train` and `part` (test_method_arrays), and for FLUDE, which
    Flower refuses."""
    names = list(BASES)
    for modifier in MODIFIERS:
        for base in ("fedbalancer", "prox+2t"):
            try:
                method_of_run(base + modifier, SETTINGS)
            except BadSetting:
                continue
            names.append(base + modifier)
            break
    names += ["fedavg+1t+late", "prox+1t+late+batches"]
    methods = {name: method_of_run(name, SETTINGS).client for name in names}
    refused = {name for name, own in methods.items() if own.train.cache_rounds is not None}
    return [
        name for name, own in methods.items() if not (own.work.forecasts or needs_costs(own)) and name not in refused
    ]


@pytest.mark.parametrize("name", all_methods())
def test_both_worlds_have_the_same_rounds(
    name: str, devices: Devices, trainer: TorchTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = method_of_run(name, SETTINGS)
    # Beside a private summary a client sends its seconds in two digits; the simulator records its own draws.
    sent = coarse if own.summary.is_private else float
    assert_the_same(on_flower(own, devices, trainer, monkeypatch), simulated(own, devices, trainer), sent)


def test_on_flower_a_client_leaves_the_forecast_to_the_server(
    devices: Devices, trainer: TorchTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    knowing, guessing = (
        method_of_run("fedbalancer+batches", SETTINGS),
        method_of_run("fedbalancer+batches+forecast", SETTINGS),
    )
    wanted = simulated(knowing, devices, trainer)
    assert_the_same(on_flower(guessing, devices, trainer, monkeypatch), wanted)
    late = [each.why for result in simulated(guessing, devices, trainer) for each in result.missing]
    assert late.count("upload") > sum(each.why == "upload" for result in wanted for each in result.missing)


def assert_the_same(
    found: list[RoundResult], wanted: list[RoundResult], sent: Callable[[float], float] = float
) -> None:
    assert len(found) == len(wanted) == ROUNDS
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.plan.cohort == theirs.plan.cohort
        assert ours.plan.quorum == theirs.plan.quorum
        assert_close(ours.plan.order, theirs.plan.order)
        assert [(r.client, r.staleness) for r in ours.reports] == [(r.client, r.staleness) for r in theirs.reports]
        assert ours.under_way == theirs.under_way
        for one, other in zip(ours.reports, theirs.reports, strict=True):
            assert_close(one.summary, other.summary)
            assert (one.epochs, one.weight) == (other.epochs, other.weight)
            assert one.update == pytest.approx(other.update, abs=1e-4)
            busy_s = sent(other.timings.forward_s) + sent(other.timings.train_s)
            assert one.timings.forward_s + one.timings.train_s == busy_s


def test_the_draws_are_worth_comparing(devices: Devices, trainer: TorchTrainer) -> None:
    results = simulated(method_of_run("fedbalancer", SETTINGS), devices, trainer)
    assert len({result.plan.order.deadline_s for result in results}) > 5
    assert len({result.plan.order.loss_threshold for result in results}) > 3
    assert any(result.missing for result in results)
    assert any(report.epochs < SETTINGS.epochs for result in results for report in result.reports)
    sizes = {client: len(y) for client, (_, y) in devices.data.items()}
    assert any(report.weight < sizes[report.client] for result in results for report in result.reports)
    late = simulated(method_of_run("fedavg+1t+late", SETTINGS), devices, trainer)
    assert max(report.staleness for result in late for report in result.reports) > 1
    looking = simulated(method_of_run("oortbalancer", SETTINGS), devices, trainer)
    assert any(report.timings.forward_s for result in looking for report in result.reports)
