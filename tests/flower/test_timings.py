"""Timings of stock Flower strategies: the tables of a run folder, from which a fleet can be learned."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

import numpy as np
from flower.fakegrid import Clock, FakeGrid, make_context
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedbalancer.core.errors import BadSetting, RunFolderError
from fedbalancer.experiments.learned_fleet import learn
from fedbalancer.flower import record_timings, timing_mod
from fedbalancer.flower.federation import Federation

TRAIN_S, TRANSPORT_S = (1.0, 2.0, 8.0), 3.0
SAMPLES, BATCH = 40, 10


class PhoneGrid(FakeGrid):
    """Three phones with a stock `ClientApp`; a phone's training takes seconds of the grid's clock."""

    def __init__(self, with_mod: bool = True, silent: frozenset[int] = frozenset()) -> None:
        self.phone_s = 0.0
        mods = [timing_mod(epochs=2, batch_size=BATCH, clock=lambda: self.phone_s)] if with_mod else []
        app = ClientApp(mods=mods)

        @app.train()
        def train(message: Message, context: Any) -> Message:
            self.phone_s += TRAIN_S[int(context.node_config["partition-id"])]
            metrics = MetricRecord({"loss": 1.0, "num-examples": SAMPLES})
            content = RecordDict({"arrays": message.content.array_records["arrays"], "metrics": metrics})
            return Message(content, reply_to=message)

        def phone(place: int) -> Any:
            context = make_context(place + 2, **{"partition-id": place})

            def answer(message: Message, sent_s: float) -> Iterator[tuple[float, Message]]:
                if place not in silent:
                    yield sent_s + TRAIN_S[place] + TRANSPORT_S, app(message, context)

            return lambda message, sent_s: list(answer(message, sent_s))

        super().__init__(Clock(), {place + 2: phone(place) for place in range(len(TRAIN_S))})


def train(grid: PhoneGrid, folder: Path, rounds: int = 3, **options: Any) -> Any:
    arrays = ArrayRecord({"w": Array(np.zeros(1000, dtype=np.float32))})
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=3, min_train_nodes=3)
    with record_timings(grid, folder, poll_s=0.1, clock=grid.clock, sleep=grid.clock.sleep) as timed:
        return strategy.start(grid=timed, initial_arrays=arrays, num_rounds=rounds, **options)


def test_fleet_of_a_stock_run(tmp_path: Path) -> None:
    result = train(PhoneGrid(), tmp_path / "stock")
    assert set(result.train_metrics_clientapp[3]) == {"loss"}  # the metrics are those of the app
    clients = pl.read_parquet(tmp_path / "stock" / "clients.parquet")
    assert clients["train_s"].to_list() == [*TRAIN_S] * 3
    assert (clients["download_s"] + clients["upload_s"]).to_list() == pytest.approx([TRANSPORT_S] * 9)
    rounds = pl.read_parquet(tmp_path / "stock" / "rounds.parquet")
    assert rounds["down_bytes"].to_list() == [3 * rounds["up_bytes"][0] // 3] * 3
    assert (rounds["end_s"] - rounds["start_s"]).to_list() == pytest.approx([11.0] * 3)
    learned = learn(tmp_path / "stock")
    assert [device.id for device in learned.fleet.devices] == ["client-0", "client-1", "client-2"]
    # Two epochs of four batches.
    assert [device.batch_s for device in learned.fleet.devices] == pytest.approx([each / 8 for each in TRAIN_S])
    assert {device.batch_size for device in learned.fleet.devices} == {BATCH}
    down_s = learned.recording.down_bytes / 125_000 / learned.fleet.devices[0].down_mbit_s
    assert down_s == pytest.approx(TRANSPORT_S / 2)


def test_silent_phones_and_phones_without_the_mod(tmp_path: Path) -> None:
    train(PhoneGrid(silent=frozenset({2})), tmp_path / "silent", timeout=20.0)
    clients = pl.read_parquet(tmp_path / "silent" / "clients.parquet")
    assert clients.group_by("outcome").len().sort("outcome").rows() == [("completed", 6), ("silent", 3)]
    assert any("never answered" in note for note in learn(tmp_path / "silent").notes)
    train(PhoneGrid(with_mod=False), tmp_path / "without")
    assert pl.read_parquet(tmp_path / "without" / "clients.parquet")["why"].unique().to_list() == [
        "the client has no timing_mod"
    ]
    with pytest.raises(RunFolderError, match="no client reported how long it trained"):
        learn(tmp_path / "without")


def test_wrong_options_and_used_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="batch_size = 0 must be at least 1"):
        timing_mod(batch_size=0)
    train(PhoneGrid(), tmp_path / "stock", 1)
    with pytest.raises(RunFolderError, match="already holds a run"):
        train(PhoneGrid(), tmp_path / "stock", 1)


PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "stock"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "test"

[tool.flwr.app.components]
serverapp = "stock.app:server"
clientapp = "stock.app:client"

[tool.flwr.app.config]
folder = ""
"""

APP = """
import time

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedbalancer.flower import record_timings, timing_mod

server = ServerApp()
client = ClientApp(mods=[timing_mod(epochs=1, batch_size=10)])


@server.main()
def main(grid: Grid, context: Context) -> None:
    with record_timings(grid, context.run_config["folder"]) as timed:
        arrays = ArrayRecord({"w": Array(np.zeros(10_000, dtype=np.float32))})
        strategy = FedAvg(fraction_evaluate=1.0, min_available_nodes=2)
        strategy.start(grid=timed, initial_arrays=arrays, num_rounds=3)


@client.train()
def train(message: Message, context: Context) -> Message:
    time.sleep(0.5 + 2.0 * context.node_config["partition-id"])
    metrics = MetricRecord({"loss": 1.0, "num-examples": 50})
    return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return Message(RecordDict({"metrics": MetricRecord({"loss": 1.0, "num-examples": 5})}), reply_to=message)
"""


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.timeout(400)
def test_stock_strategy_on_two_supernodes(tmp_path: Path) -> None:
    package = tmp_path / "app" / "stock"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "app.py").write_text(APP)
    (tmp_path / "app" / "pyproject.toml").write_text(PYPROJECT)
    manifest = tmp_path / "stock" / "manifest.json"
    with Federation(tmp_path / "federation", {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25"}) as federation:
        federation.superlink()
        for number in range(2):
            federation.supernode(f"node{number}", f"partition-id={number}")
        federation.run(tmp_path / "app", "--run-config", f'folder="{tmp_path / "stock"}"')
        until = time.monotonic() + 300
        while time.monotonic() < until:
            if manifest.exists() and json.loads(manifest.read_text())["status"] != "running":
                break
            time.sleep(0.5)
        logs = federation.log("superlink")[-1500:]
    assert manifest.exists(), logs
    assert json.loads(manifest.read_text())["status"] == "done", logs
    learned = learn(tmp_path / "stock")
    fast, slow = learned.fleet.devices
    assert (fast.id, slow.id) == ("client-0", "client-1")
    # Five batches of 0.1 and of 0.5 seconds; a busy machine only adds to them.
    assert 0.1 <= fast.batch_s < 0.5 <= slow.batch_s
    assert learned.devices["rounds"].to_list() == [3, 3]
    assert learned.recording.down_bytes >= 40_000
