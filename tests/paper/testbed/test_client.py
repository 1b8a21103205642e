"""An emulated phone answers as its recording says, trains for real, and writes down what it did."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")
pytest.importorskip("torch", reason="torch is not installed")

from flwr.app import Context, Message, RecordDict

from fedbalancer.client.work import AllOrNothing, WholeBatches, WholeEpochs
from fedbalancer.core.types import Order
from fedbalancer.flower.compat import ArrayRecord, ConfigRecord
from fedbalancer.flower.messages import ARRAYS, CONFIG, FEDBALANCER, METRICS, Instruction
from fedbalancer.flower.model_arrays import ModelLayout
from fedbalancer.paper.testbed.client import EmulatedPhone, order_name
from fedbalancer.paper.testbed.phones import Phone, RecordedPhones
from fedbalancer.paper.testbed.plan import BedPlan
from fedbalancer.paper.testbed.server import BedTransportTimes
from fedbalancer.training.model_file import FileTrainer
from fedbalancer.training.trainer import TorchTrainer

SPEED = 100.0


@pytest.fixture(autouse=True)
def _app_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's messages can only be made in a process that runs an app."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setenv("FEDBALANCER_CLIENT_FOLDER", "off")


def phone(tmp_path: Path, batch_s: float = 0.5, network_s: float = 8.0) -> EmulatedPhone:
    plan = BedPlan.make(
        tmp_path / "bed", methods=("fedavg+1t", "fedbalancer"), clients=3, task="synthetic", scale="small", speed=SPEED
    )
    (Path(plan.folder) / "bed").mkdir(parents=True)
    plan.clock().start()
    client = plan.names[0]
    devices = RecordedPhones(0, {client: Phone("1", np.array([batch_s]), np.array([network_s]))})
    return EmulatedPhone(client, plan, devices, TorchTrainer(plan.loaded), 1000)


def order_to(
    emulated: EmulatedPhone, method: str, budget_s: float, loss_threshold: float = 0.0
) -> tuple[Message, Context]:
    """A train message as the server sends it."""
    trainer, settings = emulated.trainer, emulated.plan.settings(method)
    layout = ModelLayout(trainer.layout, {name: np.dtype(np.float32) for name, _ in trainer.layout}, {})
    order = Order(
        1, loss_threshold, budget_s, settings.epochs, settings.batch_size, 0, learning_rate=settings.learning_rate
    )
    policies = emulated.plan.method(method).client.to_json() or ""
    told = Instruction(emulated.client, order, budget_s, 0, 0.5, "run", method, policies)
    arrays: ArrayRecord = layout.record(trainer.initial_weights(0))
    content = RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord({}), FEDBALANCER: told.record()})
    message = Message(content, 2, "train", ttl=1000.0)
    context = Context(
        run_id=1, node_id=2, node_config={"client-id": emulated.client}, state=RecordDict(), run_config={}
    )
    return message, context


def logged(emulated: EmulatedPhone, method: str) -> dict[str, Any]:
    lines = (emulated.plan.phone_logs(method) / f"{emulated.client}.jsonl").read_text().splitlines()
    return dict(json.loads(lines[-1]))


def test_the_report_arrives_when_the_phones_would(tmp_path: Path) -> None:
    emulated = phone(tmp_path, batch_s=1.0, network_s=60.0)
    message, context = order_to(emulated, "fedavg+1t", math.inf)
    emulated.plan.clock().hold(order_name(1, emulated.client))  # as the server does with every order
    reply = emulated.train(message, context)
    row, metrics = logged(emulated, "fedavg+1t"), reply.content.metric_records[METRICS]
    settings = emulated.plan.settings("fedavg+1t")
    batches = settings.epochs * math.ceil(emulated.size / settings.batch_size)
    assert row["batches"] == batches
    assert metrics["train-s"] == pytest.approx(batches * 1.0)
    assert row["arrives_s"] == pytest.approx(batches * 1.0 + 60.0, abs=1e-3)  # to the second, on any machine
    assert metrics["num-examples"] == emulated.size


def test_the_clock_waits_until_the_server_has_the_report(tmp_path: Path) -> None:
    emulated = phone(tmp_path, batch_s=0.01, network_s=1.0)
    emulated.train(*order_to(emulated, "fedavg+1t", math.inf))
    clock = emulated.plan.clock()
    at_s = clock.now_s()
    time.sleep(0.05)
    assert clock.now_s() == at_s
    clock.keep([])
    time.sleep(0.05)
    assert clock.now_s() > at_s


def test_a_phone_that_cannot_finish_says_so_and_trains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emulated = phone(tmp_path, batch_s=10.0)
    monkeypatch.setattr(TorchTrainer, "train", lambda *_: pytest.fail("trained for nothing"))
    message, context = order_to(emulated, "fedavg+1t", 15.0)
    reply = emulated.train(message, context)
    assert ARRAYS not in reply.content.array_records
    assert reply.content.config_records[FEDBALANCER]["outcome"] == "stopped"


def test_the_update_is_the_simulators_own(tmp_path: Path) -> None:
    """A phone sends what the simulator's trainer computes for the same work."""
    emulated = phone(tmp_path, batch_s=0.01, network_s=0.02)
    message, context = order_to(emulated, "fedavg+1t", math.inf)
    reply = emulated.train(message, context)
    sent = np.concatenate([np.ravel(a.numpy()) for a in reply.content.array_records[ARRAYS].values()])
    from fedbalancer.flower.client import balanced

    work = balanced(message, context, size=emulated.size)
    work.select()
    wanted = emulated.trainer.train(work.weights(), work.client_work()).update
    np.testing.assert_array_equal(sent, wanted)


def test_a_bed_expects_the_mean_of_the_last_ways_and_lets_whole_trainings_try() -> None:
    hopeful, fitting, filling = (BedTransportTimes(work) for work in (AllOrNothing(), WholeEpochs(), WholeBatches()))
    for seconds in (4.0, 8.0):
        for transport in (hopeful, fitting, filling):
            transport.add_order("a", seconds)
    assert fitting.expected_s("a") == 6.0
    assert fitting.budget_s("a", 1, 20.0) == 14.0
    assert hopeful.budget_s("a", 1, 20.0) == 20.0
    assert fitting.budget_s("a", 1, 5.0) > 0
    assert filling.budget_s("a", 1, 20.0) == 10.0  # the worst, and half of what they differ


def test_a_plan_comes_back_from_its_file(tmp_path: Path) -> None:
    emulated = phone(tmp_path)
    assert BedPlan.read(emulated.plan.write()) == emulated.plan
    assert isinstance(emulated.plan.method("fedavg+1t").work, AllOrNothing)
    assert replace(emulated.plan, seed=3).run_folder("fedavg+1t").name == "seed-3"


def test_a_phone_with_litert_does_what_one_with_torch_does(tmp_path: Path) -> None:
    """The same samples selected by the same threshold, the same update, on the phone's own clock."""
    pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
    file = Path(__file__).parents[2] / "training" / "small.tflite"
    found = []
    for runtime in ("torch", "litert"):
        plan = BedPlan.make(
            tmp_path / runtime, methods=("fedbalancer",), clients=3, task="small_nets:task", speed=SPEED,
            runtime=runtime, model=str(file) if runtime == "litert" else "",
        )  # fmt: skip
        (Path(plan.folder) / "bed").mkdir(parents=True)
        plan.clock().start()
        client, on_torch = plan.names[2], TorchTrainer(plan.loaded)
        devices = RecordedPhones(0, {client: Phone("1", np.array([0.5]), np.array([1.0]))})
        trainer = FileTrainer(plan.loaded, plan.model) if runtime == "litert" else on_torch
        emulated = EmulatedPhone(client, plan, devices, trainer, 1000)
        message, context = order_to(replace(emulated, trainer=on_torch), "fedbalancer", 6.0, loss_threshold=1.0)
        plan.clock().hold(order_name(1, client))
        found.append((emulated.train(message, context), logged(emulated, "fedbalancer")))
    (on_torch, its_log), (on_litert, log) = found
    assert 0 < log["samples"] == its_log["samples"] < 40
    assert log["batches"] == its_log["batches"] > 0
    for name, array in on_torch.content[ARRAYS].items():
        assert on_litert.content[ARRAYS][name].numpy() == pytest.approx(array.numpy(), abs=1e-5)
    for name, value in on_torch.content[METRICS].items():
        if name != "busy-s":
            assert on_litert.content[METRICS][name] == pytest.approx(value, abs=1e-5), name
