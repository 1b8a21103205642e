"""Evaluation says what it found, by whatever name, and who could not be asked."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower.phones import Phone, World
from flwr.app import Error, Message, MetricRecord, RecordDict

import fedbalancer as fb
from fedbalancer.core.errors import BadSetting, FedBalancerError, UnknownName
from fedbalancer.flower.evaluation import missing_metrics, to_evaluation
from fedbalancer.flower.messages import custom_metrics
from fedbalancer.reporting.results import load_run


class Evaluating(Phone):
    """A client that answers evaluate messages with these metrics, or with an error."""

    def __init__(self, number: int, answers: dict[str, Any] | str) -> None:
        super().__init__(number)
        self.answers, self.configs = answers, []

    def evaluate(self, message: Message) -> Message:
        self.configs.append(dict(message.content.config_records["config"]))
        if isinstance(self.answers, str):
            return Message(Error(2, self.answers), reply_to=message)
        return Message(RecordDict({"metrics": MetricRecord(self.answers)}), reply_to=message)


def test_metrics_of_any_name_are_pooled_and_in_the_table(tmp_path: Path) -> None:
    """The names of Flower's own quickstart."""
    first = Evaluating(0, {"num-examples": 30, "eval_loss": 1.0, "eval_acc": 0.2, "f1": 0.5})
    second = Evaluating(1, {"num-examples": 10, "eval_loss": 3.0, "eval_acc": 0.6})
    world = World(first, second)
    result = world.start(1, "fedavg+wfa", federated_evaluate=True, checkpoint_dir=tmp_path, run_key="mine")
    assert dict(result.evaluate_metrics_clientapp[1]) == pytest.approx(
        {"eval_loss": 1.5, "eval_acc": 0.3, "f1": 0.5, "num-examples": 40}
    )
    row = pl.read_parquet(tmp_path / "mine" / "evals.parquet").row(-1, named=True)
    assert (row["accuracy"], row["loss"]) == (pytest.approx(0.3), pytest.approx(1.5))
    assert row["f1"] == 0.5
    spread = ("tested_clients", "client_mean", "client_std", "client_worst_decile", "client_best_decile")
    assert [row[name] for name in spread] == [2, *map(pytest.approx, (0.4, 0.2, 0.24, 0.56))]
    assert not world.of("not among the metrics")
    assert [config["server-round"] for config in first.configs] == [0, 1]


def test_a_regression_is_reported_by_its_loss_and_its_other_errors(tmp_path: Path) -> None:
    world = World(Evaluating(0, {"num-examples": 3, "loss": 0.5, "mean-error": 1.0, "round": 7.0}))
    world.start(1, "fedavg+wfa", federated_evaluate=True, checkpoint_dir=tmp_path, run_key="mine")
    run = load_run(tmp_path / "mine")
    assert run.curve.metric.name == "loss"
    assert run.curve.last_value == 0.5
    row = run.curve.evals.row(-1, named=True)
    assert (row["mean_error"], row["client_mean"], row["round"]) == (1.0, 0.5, 1)


def test_missing_standard_metrics_are_logged_once() -> None:
    world = World(Evaluating(0, {"num-examples": 3, "rmse": 1.0}))
    result = world.start(2, "fedavg+wfa", federated_evaluate=True)
    assert result.evaluate_metrics_clientapp[2]["rmse"] == 1.0
    assert sorted(fields["metric"] for fields in world.of("not among the metrics")) == ["accuracy", "loss"]
    assert "rmse" in world.of("not among the metrics")[0]["found"]


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ("it raised", "error 2: it raised"),
        ({"accuracy": 0.5, "loss": 1.0}, "num-examples None"),
        ({"num-examples": 3, "accuracy": 0.5, "loss": math.nan}, "loss nan"),
        ({"num-examples": -3, "accuracy": 0.5, "loss": 1.0}, "num-examples -3"),
        ({"num-examples": 3, "accuracy": 1e9, "loss": 1.0}, "accuracy 1e+09, which must be from 0 to 1"),
        ({"num-examples": 3, "eval_acc": -0.1, "loss": 1.0}, "eval_acc -0.1, which must be from 0 to 1"),
        ({"num-examples": 3, "accuracy": 0.5, "test_loss": 1e30}, "test_loss 1e+30"),
    ],
)
def test_a_client_whose_answer_cannot_be_used_is_named(answers: Any, said: str) -> None:
    world = World(Evaluating(0, {"num-examples": 3, "accuracy": 0.5, "loss": 1.0}), Evaluating(1, answers))
    result = world.start(1, "fedavg+wfa", federated_evaluate=True)
    assert {fields["client"] for fields in world.of("evaluation failed")} == {"c1"}
    assert said in world.of("evaluation failed")[0]["why"]
    assert result.evaluate_metrics_clientapp[1]["num-examples"] == 3


def test_a_client_that_does_not_answer_is_named() -> None:
    world = World(Phone(0), Phone(1), Phone(2, evaluates=False))
    world.start(1, "fedavg+wfa", federated_evaluate=True, clients_per_round=2)
    assert {(fields["client"], fields["why"]) for fields in world.of("evaluation failed")} == {
        ("c2", "no reply in time")
    }


def test_the_server_and_the_clients_may_both_evaluate(tmp_path: Path) -> None:
    world = World(Evaluating(0, {"num-examples": 3, "accuracy": 0.5, "loss": 1.0}))
    result = world.start(
        1, "fedavg+wfa", evaluate_fn=lambda round, arrays: MetricRecord({"test_accuracy": 0.75, "test_loss": 2.0}),
        federated_evaluate=True, checkpoint_dir=tmp_path, run_key="mine",
    )  # fmt: skip
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == 0.5
    assert result.evaluate_metrics_serverapp[1]["test_accuracy"] == 0.75
    assert pl.read_parquet(tmp_path / "mine" / "evals.parquet")["accuracy"].to_list() == [0.75, 0.75]
    assert [fields["on"] for fields in world.of("evaluated")] == ["server", "clients"] * 2


@pytest.mark.parametrize(
    ("target", "metric", "rounds"),
    [(0.7, "accuracy", 3), (0.75, fb.Metric("f1"), 4), (0.9, "loss", 2), (0.99, "accuracy", 5)],
)
def test_a_run_ends_at_its_target_and_a_later_start_adds_nothing(
    target: float, metric: Any, rounds: int, tmp_path: Path
) -> None:
    def evaluate(number: int, arrays: Any) -> MetricRecord:
        better = 0.4 + 0.1 * number
        return MetricRecord({"eval_acc": better, "f1": better - 0.05, "loss": 1.0 - 0.05 * number})

    world, places = World(Phone(0), Phone(1)), {"checkpoint_dir": tmp_path, "run_key": "mine"}
    for _ in range(2):
        result = world.start(5, "fedavg+wfa", evaluate_fn=evaluate, target=target, target_metric=metric, **places)
        assert max(result.train_metrics_clientapp) == rounds
        manifest = json.loads((tmp_path / "mine" / "manifest.json").read_text())
        name = metric if isinstance(metric, str) else metric.title
        why = f"reached the target {name} {target:g}" if rounds < 5 else None
        assert (manifest["status"], manifest["why"]) == ("done", why)


def test_an_evaluation_on_clients_may_reach_the_target() -> None:
    world = World(Evaluating(0, {"num-examples": 3, "accuracy": 0.5, "loss": 1.0}))
    result = world.start(3, "fedavg+wfa", federated_evaluate=True, target=0.5)
    assert not result.train_metrics_clientapp, "the initial model reaches it"


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"target": 0.5}, BadSetting, "target = 0.5 needs evaluations"),
        ({"target": 80}, BadSetting, "target = 80 must be a value of accuracy above 0 and at most 1; 80% is 0.8"),
        ({"target": float("nan"), "target_metric": "loss"}, BadSetting, "must be a finite value of loss"),
        ({"target": 0.5, "target_metric": "acuracy"}, UnknownName, "did you mean accuracy"),
        ({"target_metric": "f1"}, BadSetting, "target_metric = 'f1' would have no effect without target"),
    ],
)
def test_a_target_that_no_run_reaches_is_refused(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        World(Phone(0)).start(1, "fedavg+wfa", **options)


def test_a_custom_function_combines_the_metrics() -> None:
    def worst(contents: list[RecordDict], key: str) -> MetricRecord:
        return MetricRecord({"accuracy": min(float(content["metrics"]["accuracy"]) for content in contents)})

    phones = [Evaluating(n, {"num-examples": 3, "accuracy": 0.5 + n / 10, "loss": 1.0}) for n in range(2)]
    result = World(*phones).start(1, "fedavg+wfa", federated_evaluate=True, evaluate_metrics_aggr_fn=worst)
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == 0.5


@pytest.mark.parametrize("name", ["accuracy", "acc", "eval_acc", "test-accuracy", "valAccuracy", "central.acc"])
def test_accuracies_are_known_by_their_name(name: str) -> None:
    assert to_evaluation({"lossy_count": 7, name: 0.5}).accuracy == 0.5
    assert missing_metrics({"lossy_count": 7, name: 0.5, "accelerations": 1}) == ["loss"]


def test_custom_metrics_are_sent_with_the_report() -> None:
    phones = [Phone(0), Phone(1)]
    phones[0].metrics, phones[1].metrics = {"f1": 0.2, "battery": 50}, {"f1": 0.9}
    result = World(*phones).start(1, "fedavg+wfa")
    found = result.train_metrics_clientapp[1]
    assert found["f1"] == pytest.approx((30 * 0.2 + 40 * 0.9) / 70)
    assert (found["battery"], found["completed"]) == (50, 2)

    def best(contents: list[RecordDict], key: str) -> MetricRecord:
        return MetricRecord({"f1": max(float(content["metrics"]["f1"]) for content in contents)})

    assert World(*phones).start(1, "fedavg+wfa", train_metrics_aggr_fn=best).train_metrics_clientapp[1]["f1"] == 0.9


def test_custom_metrics_that_cannot_be_sent_are_errors_on_the_client() -> None:
    phone = Phone(0)
    for metrics, said in (({"batch-s": 1.0}, "reserved"), ({"f1": math.nan}, "finite")):
        phone.metrics = metrics
        with pytest.raises(FedBalancerError, match=said):
            World(phone).start(1, "fedavg+wfa")


def test_strange_metrics_of_a_client_are_left_out() -> None:
    strange = {"inf": math.inf, "n" * 500: 1.0, "list": [1.0, 2.0], "good": 1.0} | {f"m{n}": 1.0 for n in range(200)}
    found = custom_metrics({"num-examples": 3, "epochs": 1.0, **strange})
    assert len(found) == 100
    assert found["good"] == 1.0
    assert not {"inf", "list", "epochs", "n" * 500} & set(found)
