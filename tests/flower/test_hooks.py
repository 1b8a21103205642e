"""The methods and arguments of Flower's strategies: each is honoured in our rounds, or refused by name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower.phones import Phone, World, weights_of
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower_strategies

from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.flower import Strategy


def mean_of(contents: list[RecordDict], key: str) -> MetricRecord:
    return MetricRecord({})


def model(record: ArrayRecord) -> Any:
    return record["w"].numpy()


def test_it_is_one_of_flowers() -> None:
    assert issubclass(Strategy, flower_strategies.Strategy)
    assert isinstance(Strategy("fedavg+wfa"), flower_strategies.Strategy)


class Seeing(Strategy):
    """Overrides everything and changes nothing."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.seen: list[tuple[str, int, int]] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> Iterable[Message]:
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self.seen.append(("configure_train", server_round, len(messages)))
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        given = list(replies)
        self.seen.append(("aggregate_train", server_round, len(given)))
        return super().aggregate_train(server_round, given)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> Iterable[Message]:
        messages = list(super().configure_evaluate(server_round, arrays, config, grid))
        self.seen.append(("configure_evaluate", server_round, len(messages)))
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        given = list(replies)
        self.seen.append(("aggregate_evaluate", server_round, len(given)))
        return super().aggregate_evaluate(server_round, given)


@pytest.mark.parametrize("name", ["fedavg+wfa", "fedbalancer", "fedavg+wfa+fedadam", "canter"])
def test_methods_that_only_look_change_nothing(name: str) -> None:
    phones = [Phone(0), Phone(1), Phone(2)]
    phones[0].metrics = {"f1": 0.5}
    wanted = World(Phone(0), Phone(1), Phone(2)).start(3, name, federated_evaluate=True)
    world = World(*phones, kind=Seeing)
    result = world.start(3, name, federated_evaluate=True)
    assert weights_of(result) == pytest.approx(weights_of(wanted), abs=0)
    assert dict(result.evaluate_metrics_clientapp[3]) == dict(wanted.evaluate_metrics_clientapp[3])
    assert result.train_metrics_clientapp[1]["f1"] == 0.5
    once = [("configure_train", 3), ("aggregate_train", 3), ("configure_evaluate", 3), ("aggregate_evaluate", 3)]
    called = [(each, count) for each, round, count in world.made.seen if round == 2]
    assert called == once
    assert [round for each, round, _ in world.made.seen if each == "configure_evaluate"] == [0, 1, 2, 3]


class Halving(Strategy):
    """Flower's own example of a strategy: what it changes of the configuration stays changed."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> Iterable[Message]:
        config["rate"] = float(config.get("rate", 1.0)) / 2
        return super().configure_train(server_round, arrays, config, grid)


def test_a_changed_configuration_arrives_and_stays_also_after_a_resume(tmp_path: Path) -> None:
    rates: list[float] = []

    class Listening(Phone):
        def train(self, message: Message) -> Message:
            rates.append(float(message.content.config_records["config"]["rate"]))
            return super().train(message)

    places = {"checkpoint_dir": tmp_path, "run_key": "mine"}
    World(Listening(0), kind=Halving).start(2, "fedavg+wfa", **places)
    World(Listening(0), kind=Halving).start(4, "fedavg+wfa", **places)
    assert rates == [0.5, 0.25, 0.125, 0.0625]


class Sparing(Strategy):
    """Sends the first client nothing."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> Iterable[Message]:
        return list(super().configure_train(server_round, arrays, config, grid))[1:]


def test_who_gets_no_message_is_missing() -> None:
    world = World(Phone(0), Phone(1), kind=Sparing)
    result = world.start(2, "fedavg+wfa")
    assert [len(phone.orders) for phone in world.phones] == [0, 2]
    assert [result.train_metrics_clientapp[n]["completed"] for n in (1, 2)] == [1, 1]
    assert {(each["client"], each["why"]) for each in world.of("missing")} == {("c0", "nothing was sent to it")}


@pytest.mark.parametrize("wrong", ["model", "node", "type"])
def test_a_message_that_cannot_be_is_refused(wrong: str) -> None:
    class Wrong(Strategy):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
        ) -> Iterable[Message]:
            other = ArrayRecord({"w": Array(np.ones(4, dtype=np.float32))})
            content = RecordDict({"arrays": other if wrong == "model" else arrays, "config": config})
            return [Message(content, 77 if wrong == "node" else 2, "query" if wrong == "type" else "train")]

    said = {"model": "changed the model for client 'c0'", "node": "node 77", "type": "type 'query'"}[wrong]
    with pytest.raises(BadSetting, match=said):
        World(Phone(0), kind=Wrong).start(1, "fedavg+wfa")


def test_messages_of_ones_own_get_the_order_of_their_client() -> None:
    class Plain(Strategy):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
        ) -> Iterable[Message]:
            content = RecordDict({"arrays": arrays, "config": config})
            return [Message(content, node, "train") for node in grid.get_node_ids()]

    wanted = World(Phone(0), Phone(1)).start(2, "fedavg+wfa")
    assert weights_of(World(Phone(0), Phone(1), kind=Plain).start(2, "fedavg+wfa")) == pytest.approx(weights_of(wanted))


def test_what_aggregate_train_makes_of_the_replies_is_the_model() -> None:
    class Picky(Strategy):
        """Leaves the first reply out, doubles the weight of the next, and adds a metric."""

        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            kept = list(replies)[1:]
            for reply in kept[:1]:
                reply.content["metrics"]["num-examples"] *= 2
            arrays, metrics = super().aggregate_train(server_round, kept)
            return arrays, MetricRecord({**metrics, "kept": len(kept)})

    phones = [Phone(0), Phone(1), Phone(2)]
    result = World(*phones, kind=Picky).start(1, "fedavg+wfa")
    alone = [weights_of(World(Phone(number)).start(1, "fedavg+wfa")) for number in (1, 2)]
    assert weights_of(result) == pytest.approx((80 * alone[0] + 50 * alone[1]) / 130, abs=1e-6)
    assert result.train_metrics_clientapp[1]["kept"] == 2
    assert result.train_metrics_clientapp[1]["completed"] == 3


def test_replies_that_were_changed_count_as_they_are() -> None:
    class Clipping(Strategy):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            given = list(replies)
            for reply in given:
                clipped = np.clip(model(reply.content["arrays"]), -0.5, 0.5)
                reply.content["arrays"] = ArrayRecord({"w": Array(clipped)})
            return super().aggregate_train(server_round, given)

    assert np.abs(weights_of(World(Phone(0), Phone(1), kind=Clipping).start(3, "fedavg+wfa"))).max() <= 0.5 + 1e-6


@pytest.mark.parametrize("returns", ["another", "nothing"])
def test_a_model_of_ones_own_is_taken_and_none_keeps_the_old(returns: str) -> None:
    class Own(Strategy):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            if returns == "nothing":
                return None, None
            return ArrayRecord({"w": Array(np.full(4, server_round, dtype=np.float32))}), None

    result = World(Phone(0), Phone(1), kind=Own).start(2, "fedavg+wfa")
    assert weights_of(result).tolist() == [2.0 if returns == "another" else 0.0] * 4


def test_a_model_that_cannot_be_is_refused() -> None:
    class Wrong(Strategy):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            return ArrayRecord({"w": Array(np.full(5, 1.0, dtype=np.float32))}), None

    with pytest.raises(BadData, match=r"aggregate_train returned.*\(5,\)"):
        World(Phone(0), kind=Wrong).start(1, "fedavg+wfa")


def test_a_round_without_reports_calls_it_too() -> None:
    called: list[int] = []

    class Counting(Strategy):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            given = list(replies)
            called.append(len(given))
            return super().aggregate_train(server_round, given)

    silent = Phone(0, change=lambda reply: None)
    World(silent, kind=Counting).start(1, "fedavg+1t")
    assert called == [0]


def test_metrics_of_an_aggregate_evaluate_of_ones_own_are_the_rounds() -> None:
    class Worst(Strategy):
        def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
            losses = [float(reply.content["metrics"]["loss"]) for reply in replies]
            return MetricRecord({"loss": max(losses), "asked": len(losses)})

    world = World(Phone(0), Phone(1), kind=Worst)
    result = world.start(1, "fedavg+wfa", federated_evaluate=True)
    plain = World(Phone(0), Phone(1)).start(1, "fedavg+wfa", federated_evaluate=True)
    assert result.evaluate_metrics_clientapp[1]["asked"] == 2
    assert result.evaluate_metrics_clientapp[1]["loss"] > plain.evaluate_metrics_clientapp[1]["loss"]
    assert world.of("evaluated")[-1]["loss"] == result.evaluate_metrics_clientapp[1]["loss"]


def test_a_part_of_the_clients_evaluates() -> None:
    counts = []
    for options in ({"fraction_evaluate": 0.5}, {"fraction_evaluate": 0.25, "min_evaluate_nodes": 3}):
        world = World(*(Phone(number) for number in range(4)))
        world.start(2, "fedavg+wfa", **options)
        asked = [message for message in world.grid.sent if message.metadata.message_type == "evaluate"]
        counts.append(len(asked))
    assert counts == [6, 9]  # before the first round and after two
    off = World(Phone(0))
    off.start(1, "fedavg+wfa", fraction_evaluate=0.0, min_evaluate_nodes=2)
    assert not [message for message in off.grid.sent if message.metadata.message_type == "evaluate"]


class Evaluating(Strategy):
    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fraction_train": 0.5}, "fraction_train = 0.5 would have no effect.*clients_per_round"),
        ({"min_train_nodes": 2}, "min_train_nodes = 2 would have no effect.*clients_per_round"),
        ({"weighted_by_key": "n"}, "weighted_by_key = 'n' must be 'num-examples'"),
        ({"arrayrecord_key": "m"}, "arrayrecord_key = 'm' must be 'arrays'"),
        ({"configrecord_key": "m"}, "configrecord_key = 'm' must be 'config'"),
        ({"min_clients": 2, "min_available_nodes": 3}, "min_clients = 2 and min_available_nodes = 3"),
        ({"min_available_nodes": 0}, "at least 1"),
        ({"fraction_evaluate": 1.5}, "fraction_evaluate = 1.5 must be from 0 to 1"),
        ({"fraction_evaluate": 0.0, "federated_evaluate": True}, "contradict"),
        ({"min_evaluate_nodes": 3}, "min_evaluate_nodes would have no effect.*federated_evaluate"),
        ({"evaluate_metrics_aggr_fn": min}, "evaluate_metrics_aggr_fn would have no effect.*federated_evaluate"),
    ],
)
def test_an_argument_of_flowers_that_would_do_nothing_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadSetting, match=said):
        Strategy("fedavg+wfa", **options)


def test_a_method_that_would_never_be_called_is_refused() -> None:
    with pytest.raises(BadSetting, match=r"aggregate_evaluate would have no effect.*federated_evaluate"):
        Evaluating("fedavg+wfa")
    Evaluating("fedavg+wfa", federated_evaluate=True)


def test_what_is_true_anyway_may_be_said() -> None:
    given = {"weighted_by_key": "num-examples", "arrayrecord_key": "arrays", "configrecord_key": "config"}
    assert Strategy("fedavg+wfa", min_available_nodes=3, **given).min_clients == 3
    with pytest.raises(TypeError, match="fraction_trian"):
        Strategy("fedavg+wfa", fraction_trian=0.5)


def test_it_does_not_run_in_a_loop_of_flowers() -> None:
    wrapped = flower_strategies.DifferentialPrivacyServerSideFixedClipping(Strategy("fedavg+wfa"), 1.0, 1.0, 2)
    world, arrays = World(Phone(0)), ArrayRecord({"w": Array(np.zeros(4, dtype=np.float32))})
    world.grid.send_and_receive = lambda messages, timeout: []  # type: ignore[attr-defined] # what that loop calls
    with pytest.raises(BadSetting, match=r"configure_train of Strategy.*wrap"):
        wrapped.start(world.grid, arrays)
    with pytest.raises(BadSetting, match="aggregate=Strategy"):
        Strategy("fedavg+wfa", aggregate=Strategy("fedavg+wfa"))


class Noting(flower_strategies.FedAvg):
    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (flower_strategies.FedAvg(fraction_evaluate=0.5), "fraction_evaluate = 0.5 of aggregate=FedAvg"),
        (flower_strategies.FedAdam(min_evaluate_nodes=3), "min_evaluate_nodes = 3 of aggregate=FedAdam"),
        (flower_strategies.FedAvg(evaluate_metrics_aggr_fn=mean_of), "evaluate_metrics_aggr_fn of aggregate=FedAvg"),
        (flower_strategies.FedAvg(train_metrics_aggr_fn=mean_of), "train_metrics_aggr_fn of aggregate=FedAvg"),
        (Noting(), "its own aggregate_evaluate would not be called"),
    ],
)
def test_what_a_strategy_in_the_aggregation_slot_would_not_do_is_refused(strategy: Any, said: str) -> None:
    with pytest.raises(BadSetting, match=said):
        Strategy("fedavg+wfa", aggregate=strategy)
