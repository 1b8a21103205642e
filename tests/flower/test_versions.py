"""Clients and servers of other versions: compatible ones are served, others get a sentence about what to install.

`FrozenPhone` and `frozen_request` are a frozen copy of version 3 of the wire format. Do not adapt them to changes of
fedbalancer: they stand for devices in the field.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower.fakegrid import make_context
from flower.phones import Phone, World, weights_of
from flower.test_secure import SecurePhone
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedbalancer import __version__
from fedbalancer.core.errors import BadSetting
from fedbalancer.flower import balanced
from fedbalancer.flower.introduction import answer_greeting
from fedbalancer.flower.messages import HELLO, check_version, common_version


class FrozenPhone(Phone):
    """A client of version 3, written against Flower's records only."""

    def __call__(self, message: Message, sent_s: float) -> list[tuple[float, Message]]:
        ours = message.content.config_records["fedbalancer"]
        assert ours["version"] == 3, "version 3 refuses all others"
        if message.metadata.message_type == HELLO:
            return [(sent_s + 2.0, self.greet(message, ours))]
        self.seen = dict(ours)
        return [(sent_s + 4.0, self.report(message, ours))]

    def greet(self, message: Message, ours: Any) -> Message:
        assert {"run-key", "batch-size", "latencies"} <= set(ours)
        metrics = {"num-examples": len(self.y), "batch-s": [0.5] * ours["latencies"], "busy-s": 0.0}
        identity = ConfigRecord({"version": 3, "client": "c1"})
        return Message(RecordDict({"fedbalancer": identity, "metrics": MetricRecord(metrics)}), reply_to=message)

    def report(self, message: Message, ours: Any) -> Message:
        weights = message.content.array_records["arrays"]["w"].numpy().astype(np.float64)
        losses = self.losses(weights)
        gradient = 2 * self.x.T @ (self.x @ weights - self.y) / len(self.y)
        update = (-ours["learning-rate"] * gradient).astype(np.float32)
        over = losses[losses >= ours["loss-threshold"]]
        metrics = {
            "num-examples": len(self.y), "size": len(self.y), "loss-low": losses.min(),
            "loss-high": np.quantile(losses, 0.8), "loss-sum": losses.sum(), "loss-count": float(len(losses)),
            "over-count": float(len(over)), "over-sumsq": float((over**2).sum()), "batch-s": 0.01, "epochs": 1.0,
            "busy-s": 1.0, "forward-s": 0.1, "train-s": 0.5,
        }  # fmt: skip
        header = {"version": 3, "client": "c1", "round": ours["round"], "outcome": "trained", "phase": ""}
        numbers = {name: value if isinstance(value, int) else float(value) for name, value in metrics.items()}
        content = RecordDict({
            "arrays": ArrayRecord({"fedbalancer.vector": Array(update)}), "metrics": MetricRecord(numbers),
            "fedbalancer": ConfigRecord(header),
        })  # fmt: skip
        return Message(content, reply_to=message)


FIELDS = {
    "version", "client", "round", "loss-threshold", "deadline-s", "epochs", "batch-size", "seed", "sample-cap",
    "epoch-batches", "budget-s", "learning-rate", "clip-norm", "accepted-round", "batch-s", "run-key", "method",
    "policies", "late-counts", "rank", "optimizer", "accumulate", "dtype", "drop-last", "batch-norm", "optimizer-state",
}  # fmt: skip
"""What an order of version 3 has."""


def test_a_client_of_version_3_is_served_beside_new_ones(tmp_path: Path) -> None:
    old = FrozenPhone(1)
    result = World(Phone(0), old).start(3, "fedbalancer[w=2]", checkpoint_dir=tmp_path, run_key="mine")
    clients = pl.read_parquet(tmp_path / "mine" / "clients.parquet")
    completed = clients.filter(clients["outcome"] == "completed")
    assert sorted(completed["client"].to_list()) == ["c0"] * 3 + ["c1"] * 3
    assert np.linalg.norm(weights_of(result)) > 1
    assert set(old.seen) >= FIELDS, "more fields do not disturb it"


def test_secure_aggregation_refuses_a_client_that_would_send_its_update_in_the_clear() -> None:
    world, old = World(SecurePhone(0), SecurePhone(2), SecurePhone(3)), FrozenPhone(1)
    world.grid.nodes[9] = old
    world.start(1, "fedavg+2t+silent", secure_aggregation=True)
    (refused, *_) = world.of("node not introduced")
    assert refused["node"] == 9
    assert f"secure aggregation needs version 4; install fedbalancer=={__version__} there" in refused["why"]
    assert not hasattr(old, "seen"), "it gets no order"


def frozen_request() -> RecordDict:
    """The first message of a server of version 3."""
    record = {"version": 3, "run-key": "mine", "batch-size": 10, "latencies": 2}
    return RecordDict({"fedbalancer": ConfigRecord(record)})


def test_a_server_of_version_3_gets_what_it_knows() -> None:
    context = make_context(2, **{"client-id": "c0", "tags": "pixel"})
    message = Message(frozen_request(), 2, HELLO)
    reply = answer_greeting(message, context, 30, tags=["charging"])
    assert dict(reply.content.config_records["fedbalancer"]) == {"version": 3, "client": "c0"}
    phone = Phone(0)
    World(phone).start(1, "fedavg+wfa")
    order = phone.orders[0].record()
    order["version"] = 3
    arrays = ArrayRecord({"w": Array(np.zeros(4, dtype=np.float32))})
    content = RecordDict({"fedbalancer": order, "arrays": arrays, "config": ConfigRecord()})
    declined = balanced(Message(content, 2, "train"), context, size=40, tags=["charging"]).decline("battery low")
    header = dict(declined.content.config_records["fedbalancer"])
    assert header == {"version": 3, "client": "c0", "round": 1, "outcome": "stopped", "phase": "train"}


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({"version": 2}, f"has version 2 of the wire format and .* install fedbalancer=={__version__} there$"),
        ({"version": 9, "versions": [8, 9], "software": "3.1.4"}, "versions 3 to 4; install fedbalancer==3.1.4 here$"),
        ({"version": 9, "software": "; rm -rf /"}, "install a newer fedbalancer here$"),
        ({}, f"version None of the wire format .* install fedbalancer=={__version__} there$"),
    ],
)
def test_an_incompatible_version_is_one_sentence_about_what_to_install(record: dict[str, Any], sentence: str) -> None:
    for read in (common_version, check_version):
        with pytest.raises(BadSetting, match=sentence if read is common_version else "install"):
            read(record)


def test_both_sides_use_the_newest_common_version() -> None:
    assert common_version({"version": 3}) == 3
    assert common_version({"version": 3, "versions": [3, 4]}) == 4
    assert common_version({"version": 3, "versions": [3, 4, 5, 6]}) == 4
