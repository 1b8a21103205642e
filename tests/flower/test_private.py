"""Private summaries over Flower: the noisy histogram travels, is checked, and is read on the server."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower.phones import Phone, World, weights_of
from flwr.app import Message, MetricRecord, RecordDict

from fedbalancer.core.errors import BadSetting
from fedbalancer.flower import Strategy
from fedbalancer.privacy import most_releases
from fedbalancer.privacy.central import PrivateMean
from fedbalancer.server.aggregate import CheckedUpdates
from fedbalancer.store.contents import read_manifest

PRIVATE = "fedbalancer[forward_pass=every,summary=histogram(noise_multiplier=0,clip=100)]"


def test_clients_send_counts_and_the_server_reads_losses() -> None:
    sent: list[dict[str, object]] = []

    def kept(reply: Message) -> Message:
        sent.append(dict(reply.content.metric_records["metrics"]))
        return reply

    result = World(Phone(0, change=kept), Phone(1), Phone(2)).start(8, PRIVATE)
    assert weights_of(result) == pytest.approx(np.arange(1, 5), abs=0.3)
    assert all(sum(each["released"]) == 30 and each["loss-sum"] == 0 for each in sent)  # type: ignore[call-overload]
    assert 0 < result.train_metrics_clientapp[1]["train_loss"] < 100


@pytest.mark.parametrize("method", [PRIVATE, PRIVATE.replace("[", "+robust[", 1)])
@pytest.mark.parametrize(
    "released",
    [None, [1.0], [float("nan")] * 64, [1e60] * 64, [1e17, -1e17] + [0.0] * 62, [0.0] * 63 + [1e6], [-1.0] * 64],
)
def test_an_impossible_histogram_is_named_and_left_out(released: list[float] | None, method: str) -> None:
    def changed(reply: Message) -> Message:
        found = dict(reply.content.metric_records["metrics"])
        found.pop("released")
        metrics = MetricRecord({**found, **({"released": released} if released else {})})
        records = {name: reply.content[name] for name in reply.content}
        other = Message(RecordDict({**records, "metrics": metrics}), reply_to=reply)
        other.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
        return other

    world = World(Phone(0), Phone(1), Phone(2, change=changed))
    world.start(2, method)
    assert {fields["client"] for fields in world.of("invalid")} == {"c2"}


def told_by(method: str, rounds: int = 6) -> list[dict[str, Any]]:
    """The metrics that one of three clients sends, by round."""
    sent: list[dict[str, Any]] = []

    def kept(reply: Message) -> Message:
        sent.append(dict(reply.content.metric_records["metrics"]))
        return reply

    world = World(Phone(0, change=kept), Phone(1), Phone(2))
    result = world.start(rounds, method)
    assert not world.of("invalid")
    assert result.train_metrics_clientapp[1]["num-examples"] > 0
    return sent


@pytest.mark.parametrize(
    "method",
    [
        "fedbalancer[w=1,forward_pass=every,summary=histogram(noise_multiplier=1,clip=100)]",
        "fedbalancer[w=1,forward_pass=every,summary=gaussian(noise_factor=9,loss_clip=5,utility_samples='all')]",
        "fedavg+1t+silent",
    ],
)
def test_a_private_client_sends_neither_counts_nor_exact_seconds(method: str) -> None:
    for told in told_by(method):
        assert told["num-examples"] == told["loss-count"] == 0
        assert told["epochs"] == 3
        assert all(told[name] == float(f"{told[name]:.1e}") for name in ("batch-s", "busy-s", "forward-s", "train-s"))


def test_a_private_client_that_sends_a_count_is_named_and_left_out() -> None:
    def counting(reply: Message) -> Message:
        reply.content.metric_records["metrics"]["num-examples"] = 30
        return reply

    world = World(Phone(0), Phone(1, change=counting))
    world.start(1, "fedbalancer[forward_pass=every,summary=histogram]")
    assert [(told["client"], "withholds" in told["why"]) for told in world.of("invalid")] == [("c1", True)]


def test_a_sum_that_only_cryptography_could_hide_is_refused() -> None:
    with pytest.raises(BadSetting, match="secure aggregation"):
        Strategy("fedbalancer[summary=secagg-histogram]")


def test_noise_on_the_model_that_clients_could_compute_is_refused() -> None:
    central = "fedbalancer.privacy.central:PrivateMean"
    with pytest.raises(BadSetting, match="every client knows"):
        Strategy(f"fedavg+1t[aggregate={central}]")
    Strategy(f"fedavg+1t[aggregate={central}(draws='system')]")


@pytest.mark.parametrize("wrap", [CheckedUpdates, lambda inner: CheckedUpdates(CheckedUpdates(inner))])
def test_a_wrapper_does_not_hide_that_clients_could_compute_the_noise(wrap: Any) -> None:
    with pytest.raises(BadSetting, match="every client knows"):
        Strategy("fedavg+1t", aggregate=wrap(PrivateMean()))
    Strategy("fedavg+1t", aggregate=wrap(PrivateMean(draws="system")))


class Looking(Strategy):
    """Overrides the aggregation, and changes nothing."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        return super().aggregate_train(server_round, replies)


def model_epsilons(folder: Path) -> set[float]:
    return set(pl.read_parquet(folder / "run" / "privacy.parquet")["model_epsilon"])


@pytest.mark.parametrize("kind", [Strategy, Looking])
@pytest.mark.parametrize("wrap", [lambda inner: inner, CheckedUpdates])
def test_noise_is_added_in_every_round_and_only_a_mean_as_it_is_has_an_epsilon(
    tmp_path: Path, kind: Any, wrap: Any
) -> None:
    pytest.importorskip("dp_accounting")
    world = World(Phone(0), Phone(1), kind=kind)
    policy = wrap(PrivateMean(clip_norm=1e-6, noise_multiplier=1e6, draws="system"))
    world.start(1, "fedavg+wfa", aggregate=policy, checkpoint_dir=tmp_path, run_key="run")
    finite = kind is Strategy and isinstance(policy, PrivateMean)
    assert all(math.isfinite(each) == finite for each in model_epsilons(tmp_path))
    said = read_manifest(tmp_path / "run")["privacy"]
    assert bool(said["model_why"]) != finite


@pytest.mark.parametrize("kind", [Strategy, Looking])
def test_a_round_in_which_nobody_answers_adds_noise_too(kind: Any) -> None:
    silent = World(Phone(0, change=lambda reply: None), Phone(1, change=lambda reply: None), kind=kind)
    result = silent.start(1, "fedavg+1t", aggregate=PrivateMean(draws="system"))
    assert np.abs(weights_of(result)).min() > 0


def test_a_client_without_budget_is_not_selected_again_also_after_a_crash(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    method = "fedbalancer[summary=histogram(noise_multiplier=7,clip=100)]"
    asked = {"settings": {"epsilon_budget": 1.0}, "checkpoint_dir": tmp_path, "run_key": "private"}
    World(Phone(0), Phone(1)).start(2, method, **asked)  # two of the four rounds that the budget allows
    world = World(Phone(0), Phone(1))
    world.start(50, method, **asked)
    spent = pl.read_parquet(tmp_path / "private" / "privacy.parquet")
    most = most_releases(7, 1.0)
    assert set(spent["releases"]) == {most}
    assert [len(phone.orders) for phone in world.phones] == [most - 2, most - 2]
