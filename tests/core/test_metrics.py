"""Names and directions of metrics, and what users may give as a metric."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedbalancer as fb
from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.metrics import DIRECTIONS, LOSS, RESERVED, Metric, choose_metric, read_metrics
from fedbalancer.store.rows import EvalRow, PopulationRow, RunColumns

SHARES = st.floats(0.1, 1.0)


def share_right(outputs: Any, labels: Any) -> tuple[float, float]:
    return 1.0, 2.0


def test_every_built_in_metric_knows_its_direction() -> None:
    assert {name for name in DIRECTIONS if not Metric(name).higher_is_better} == {
        "loss", "perplexity", "mae", "mse", "rmse",
    }  # fmt: skip
    assert Metric("top10").higher_is_better
    with pytest.raises(BadSetting, match="higher_is_better = True is wrong for the metric 'mae'"):
        Metric("mae", higher_is_better=True)


def test_a_metric_is_given_by_name_function_or_object_and_the_first_is_the_main_one() -> None:
    own = fb.Metric("error", share_right, higher_is_better=False)
    assert [each.name for each in read_metrics(["f1", own, share_right])] == ["f1", "error", "accuracy"]
    assert read_metrics(share_right)[0].function is share_right
    assert read_metrics(None)[0].name == "accuracy"
    assert read_metrics(None, are_classes=False) == (LOSS,)


@pytest.mark.parametrize(
    ("given_metric", "message"),
    [
        ("acuracy", "unknown metric 'acuracy'; did you mean accuracy"),
        (["accuracy", "accuracy"], "the metric 'accuracy' appears twice"),
        ([], "metric is empty; give at least one"),
        (3, "metric = 3 must be a name"),
        ("top0", "unknown metric 'top0'"),
    ],
)
def test_anything_else_is_refused_with_what_is_possible(given_metric: Any, message: str) -> None:
    with pytest.raises((BadSetting, UnknownName), match=message):
        read_metrics(given_metric)


@pytest.mark.parametrize("name", ["round", "client_mean", "tested_on", "two words", "", "schedule", 3])
def test_a_metric_needs_a_name_that_can_be_a_column_of_its_own(name: Any) -> None:
    with pytest.raises(BadSetting, match="a metric cannot be named"):
        Metric(name, share_right)


def test_no_metric_hides_another_column() -> None:
    columns = {*EvalRow._fields, *PopulationRow._fields, *RunColumns._fields} - {"accuracy", "loss", "metrics"}
    assert columns <= RESERVED


def test_torchmetrics_objects_classes_and_partials_bring_their_name_and_direction() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    from functools import partial

    from torchmetrics.classification import MulticlassF1Score

    by_object, by_class, by_partial = read_metrics([
        torchmetrics.MeanSquaredError(), torchmetrics.R2Score, partial(MulticlassF1Score, num_classes=3),
    ])  # fmt: skip
    assert [by_object.name, by_class.name, by_partial.name] == ["mean_squared_error", "r2_score", "multiclass_f1_score"]
    assert [by_object.higher_is_better, by_class.higher_is_better] == [False, True]
    assert fb.Metric("error", torchmetrics.MeanSquaredError()).higher_is_better is False
    with pytest.raises(BadSetting, match=r"SumMetric does not say whether higher is better; give fedbalancer.Metric\("):
        read_metrics(torchmetrics.SumMetric())


@given(st.sampled_from([*DIRECTIONS, "top5"]), st.floats(-1e6, 1e6), SHARES)
def test_a_share_of_a_value_is_never_harder_to_reach_than_the_value(name: str, value: float, share: float) -> None:
    metric = Metric(name)
    assert metric.sign * metric.share_of(value, share) <= metric.sign * value
    assert metric.share_of(value, 1.0) == value


def test_what_a_manifest_records_of_a_metric_comes_back_without_its_function() -> None:
    own = fb.Metric("error", lambda outputs, labels: (0.0, 1.0), higher_is_better=False)
    assert own.plain == own
    assert pickle.loads(pickle.dumps(own.plain)) == own
    assert Metric.from_json(None).name == Metric.from_json({"name": 3}).name == "accuracy"


def test_a_target_uses_one_of_the_metrics_or_the_loss() -> None:
    metrics = read_metrics(["f1", "accuracy"])
    assert [choose_metric(metrics, name).name for name in (None, "accuracy", "loss")] == ["f1", "accuracy", "loss"]
    with pytest.raises(UnknownName, match="unknown metric of this task 'mae'; known: accuracy, f1, loss"):
        choose_metric(metrics, "mae")
