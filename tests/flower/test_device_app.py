"""The ready client for devices does what the one for torch does, from a model file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import small_nets

pytest.importorskip("flwr", reason="flwr is not installed")
pytest.importorskip("torch", reason="torch is not installed")

import torch
from flower.fakegrid import Clock, FakeGrid, make_context
from flwr.app import ArrayRecord, Message

from fedbalancer.core.errors import BadData
from fedbalancer.flower import Strategy, client_app, device_app
from fedbalancer.flower.grid_engine import Waiting

FOLDER = Path(__file__).parent.parent / "training"
PACKAGES = {"small.tflite": "ai_edge_litert", "small.pte": "executorch"}


@pytest.fixture(params=PACKAGES)
def file(request: pytest.FixtureRequest) -> Path:
    pytest.importorskip(PACKAGES[request.param], reason="the runtime is not installed")
    return FOLDER / str(request.param)


def data(context: Any) -> Any:
    return small_nets.samples(40, int(context.node_config["partition-id"]))


def start(app: Any, method: str, rounds: int, initial: Any = small_nets.make, **options: Any) -> tuple[Any, list[Any]]:
    """Three nodes with the app behind a fake grid; the result, and what the nodes replied."""
    clock, replies = Clock(), []

    def node(context: Any) -> Any:
        def handle(message: Message, sent_s: float) -> Any:
            replies.append(app(message, context))
            return [(sent_s + 1.0, replies[-1])]

        return handle

    contexts = [make_context(n + 2, **{"partition-id": n}) for n in range(3)]
    grid = FakeGrid(clock, {context.node_id: node(context) for context in contexts})
    waiting = Waiting(clock=clock, sleep=clock.sleep, background=False)
    given = {"clients_per_round": 3, "epochs": 2, "batch_size": 8, "learning_rate": 0.1, "min_clients": 1}
    torch.manual_seed(0)
    strategy = Strategy(method, waiting=waiting, **(given | options))
    return strategy.start(grid, ArrayRecord(initial().state_dict()), rounds), replies


@pytest.mark.parametrize("method", ["fedavg+wfa", "fedbalancer"])
def test_rounds_are_those_of_the_client_for_torch(method: str, file: Path) -> None:
    results, replies = zip(
        start(device_app(file, data), method, 3), start(client_app(small_nets.make, data), method, 3), strict=True
    )
    for name in results[0].arrays:
        found, wanted = (result.arrays[name].numpy() for result in results)
        assert found == pytest.approx(wanted, abs=1e-5)
    counted = [[reply.content["metrics"]["num-examples"] for reply in each] for each in replies]
    assert counted[0] == counted[1], "the same samples were selected"


def test_fedbalancer_learns_and_is_evaluated_by_the_devices(file: Path) -> None:
    result, _ = start(device_app(file, data), "fedbalancer", 8, federated_evaluate=True, learning_rate=0.3)
    found = [result.evaluate_metrics_clientapp[n]["accuracy"] for n in (0, 8)]
    assert found[1] > max(found[0], 0.7)


def test_another_model_than_the_servers_is_told(file: Path) -> None:
    with pytest.raises(BadData, match="differs"):
        start(device_app(file, data), "fedavg+wfa", 1, initial=lambda: torch.nn.Linear(24, 3))


def test_neither_torch_nor_anything_else_that_is_large_is_loaded() -> None:
    """A process that opens, times and trains a file with LiteRT imports none of these."""
    pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
    code = f"""
import sys
import numpy as np
import fedbalancer.flower
fedbalancer.flower.device_app, fedbalancer.flower.balanced, fedbalancer.flower.introduce
from fedbalancer.training.litert import LitertModel
from fedbalancer.core.types import ClientWork
model = LitertModel({str(FOLDER / "small.tflite")!r})
x, y = np.ones((8, 2, 12), np.float32), np.arange(8) % 3
model.time_batches((x, y), 4, 2)
model.losses(np.zeros(model.layout.parameters, np.float32), (x, y), "me")
large = {{"torch", "tensorflow", "scipy", "polars", "matplotlib", "ray", "pydantic", "pandas"}}
print(sorted(large & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
