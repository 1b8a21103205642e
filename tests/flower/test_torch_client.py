"""The ready client for torch trains what the simulator's trainer would, and stops itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower.fakegrid import Clock, FakeGrid, make_context
from flwr.app import ArrayRecord, Message

from fedbalancer import Task
from fedbalancer.client.train import TorchTrainer
from fedbalancer.devices.many import DeviceDraw
from fedbalancer.errors import BadData
from fedbalancer.flower import Strategy, client_app
from fedbalancer.flower.grid_engine import Waiting
from fedbalancer.randomness import integer_seed
from fedbalancer.types import ClientWork

torch = pytest.importorskip("torch")


def net() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


def samples(context: Any) -> Any:
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    y = rng.integers(0, 3, 40)
    return (rng.normal(size=(40, 5)) + 2 * np.eye(3, 5)[y]).astype(np.float32), y


class Nodes:
    """Apps behind a fake grid; a reply comes a second after its message."""

    def __init__(self, apps: int, model: Any = net, **options: Any) -> None:
        self.clock, self.replies = Clock(), []
        app = client_app(model, samples, **options)
        contexts = [make_context(n + 2, **{"partition-id": n}) for n in range(apps)]

        def node(context: Any) -> Any:
            def handle(message: Message, sent_s: float) -> Any:
                self.replies.append(app(message, context))
                return [(sent_s + 1.0, self.replies[-1])]

            return handle

        self.grid = FakeGrid(self.clock, {context.node_id: node(context) for context in contexts})

    def start(self, method: str, rounds: int, **options: Any) -> Any:
        waiting = Waiting(clock=self.clock, sleep=self.clock.sleep, background=False)
        given = {"clients_per_round": 3, "epochs": 2, "batch_size": 8, "learning_rate": 0.1, "min_clients": 1}
        torch.manual_seed(0)
        arrays = ArrayRecord(net().state_dict())
        return arrays, Strategy(method, waiting=waiting, **(given | options)).start(self.grid, arrays, rounds)


def test_one_round_is_what_the_simulators_trainer_gives() -> None:
    nodes = Nodes(1)
    sent, result = nodes.start("fedavg+wfa", 1)
    x, y = samples(make_context(2, **{"partition-id": 0}))
    trainer = TorchTrainer(Task(clients={"client-0": (x, y)}, test=(x, y), model=net), engine="plain")
    module = net()
    module.load_state_dict({name: torch.tensor(array.numpy()) for name, array in sent.items()})
    floats = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    weights = np.concatenate([floats[name].detach().numpy().ravel() for name, _ in trainer.layout]).astype(np.float32)
    seed = integer_seed(0, "train", 1, "client-0")
    update = trainer.train(weights, ClientWork("client-0", np.arange(40), 10, 8, 0.1, 0.0, None, seed)).update
    got = np.concatenate([result.arrays[name].numpy().ravel() for name, _ in trainer.layout])
    assert np.abs(update).max() > 0.01
    assert got == pytest.approx(weights + update, abs=1e-6)
    assert result.arrays["1.num_batches_tracked"].numpy() == sent["1.num_batches_tracked"].numpy()


def test_fedbalancer_learns_and_is_evaluated_by_the_clients() -> None:
    _, result = Nodes(3).start("fedbalancer", 6, federated_evaluate=True)
    found = [result.evaluate_metrics_clientapp[n]["accuracy"] for n in (0, 6)]
    assert found[1] > max(found[0], 0.8)


def test_a_held_device_reports_its_own_speed() -> None:
    nodes = Nodes(1, hold=lambda context, round: DeviceDraw(0.02, 0.0, 0.0))
    nodes.start("fedavg+wfa", 1)
    report = nodes.replies[-1].content["metrics"]
    assert report["train-s"] >= 10 * 0.02


def test_another_model_than_the_servers_is_told() -> None:
    with pytest.raises(BadData, match="differs"):
        Nodes(1, model=lambda: torch.nn.Linear(5, 3)).start("fedavg+wfa", 1)
