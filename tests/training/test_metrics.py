"""Metrics agree with torchmetrics, and do not depend on how an evaluation is divided into pieces."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedbalancer as fb
from fedbalancer.core.errors import BadData
from fedbalancer.core.metrics import Metrics, read_metrics
from fedbalancer.core.types import Evaluation
from fedbalancer.training.metrics import combine_pieces, make_measures

torch = pytest.importorskip("torch", reason="metrics need the extra [torch]")
torchmetrics = pytest.importorskip("torchmetrics", reason="the reference needs the extra [metrics]")

from torchmetrics import classification as C  # noqa: E402
from torchmetrics import regression as G  # noqa: E402

SEEDS = st.integers(0, 2**32 - 1)


def evaluate(metric: Metrics, outputs: Any, labels: Any, size: int = 7) -> Evaluation:
    """Evaluate in pieces of `size` samples."""
    measures = make_measures(read_metrics(metric))
    pieces = [
        (1.0, len(y), tuple(measure.part(x, y) for measure in measures))
        for x, y in zip(outputs.split(size), labels.split(size), strict=True)
    ]
    return combine_pieces(measures, pieces)


def classes(seed: int, count: int, number: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(count, number)).round(1).astype(np.float32)  # with ties
    return torch.from_numpy(scores), torch.from_numpy(rng.integers(number, size=count))


def numbers(seed: int, *shape: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    truth = rng.normal(5.0, 2.0, size=shape).astype(np.float32)
    return torch.from_numpy(truth + rng.normal(size=shape).astype(np.float32)), torch.from_numpy(truth)


@settings(deadline=None, max_examples=25)
@given(SEEDS, st.integers(40, 90), st.integers(3, 5))
def test_metrics_of_classes_agree_with_torchmetrics(seed: int, count: int, number: int) -> None:
    outputs, labels = classes(seed, count, number)
    found = evaluate(["accuracy", "f1", "auroc", "top2", "perplexity"], outputs, labels)
    assert found.accuracy == pytest.approx(float(C.MulticlassAccuracy(number, average="micro")(outputs, labels)))
    assert found.metrics["f1"] == pytest.approx(float(C.MulticlassF1Score(number)(outputs, labels)), abs=1e-6)
    assert found.metrics["auroc"] == pytest.approx(float(C.MulticlassAUROC(number)(outputs, labels)), abs=1e-5)
    loss = torch.nn.functional.cross_entropy(outputs, labels)
    assert found.metrics["perplexity"] == pytest.approx(math.exp(float(loss)), rel=1e-5)
    within = torch.topk(outputs, 2, dim=1).indices
    assert found.metrics["top2"] == pytest.approx(float((within == labels[:, None]).any(dim=1).float().mean()))


@settings(deadline=None, max_examples=25)
@given(SEEDS, st.sampled_from([(30,), (30, 1), (40, 3)]))
def test_errors_agree_with_torchmetrics(seed: int, shape: tuple[int, ...]) -> None:
    outputs, labels = numbers(seed, *shape)
    found = evaluate(["mae", "mse", "rmse", "r2"], outputs, labels).metrics
    columns = math.prod(shape[1:])
    pairs = outputs.reshape(len(labels), columns), labels.reshape(len(labels), columns)
    assert found["mae"] == pytest.approx(float(G.MeanAbsoluteError()(outputs, labels)), rel=1e-5)
    assert found["mse"] == pytest.approx(float(G.MeanSquaredError()(outputs, labels)), rel=1e-5)
    assert found["rmse"] == math.sqrt(found["mse"])
    expected = np.mean([float(G.R2Score()(*(part[:, each] for part in pairs))) for each in range(columns)])
    assert found["r2"] == pytest.approx(expected, abs=1e-4)


NAMES = ["accuracy", "f1", "auroc", "top2", "perplexity"]


@settings(deadline=None, max_examples=15)
@given(SEEDS, st.integers(1, 60))
def test_a_metric_does_not_depend_on_the_size_of_the_pieces(seed: int, size: int) -> None:
    outputs, labels = classes(seed, 50, 3)
    whole = evaluate(NAMES, outputs, labels, 50)
    found = evaluate(NAMES, outputs, labels, size)
    for name in NAMES:
        assert found.value(name) == pytest.approx(whole.value(name), rel=1e-9)


def test_r2_of_labels_far_from_zero_loses_no_digits() -> None:
    truth = 1e6 + torch.arange(64.0, dtype=torch.float64)
    found = evaluate("r2", (truth + 1).float(), truth.float(), 8).metrics["r2"]
    assert found == pytest.approx(1 - 64 / float(((truth - truth.mean()) ** 2).sum()), rel=1e-6)


def test_a_single_logit_is_the_score_of_class_one() -> None:
    logits, labels = torch.tensor([[-2.0], [-1.0], [0.5], [3.0]]), torch.tensor([0, 1, 0, 1])
    found = evaluate(["f1", "auroc"], logits, labels).metrics
    assert found == {"f1": 0.5, "auroc": 0.75}


@pytest.mark.parametrize("classes_last", [False, True])
def test_masked_steps_of_sequences_do_not_count(classes_last: bool) -> None:
    outputs, labels = torch.randn(6, 5, 4), torch.randint(4, (6, 5))
    labels[0, 2:], labels[3, :] = -100, 4
    kept = (labels >= 0) & (labels < 4)
    rows = outputs[kept]
    found = evaluate(["perplexity", "top2", "f1"], outputs if classes_last else outputs.movedim(-1, 1), labels).metrics
    loss = torch.nn.functional.cross_entropy(rows, labels[kept])
    assert found["perplexity"] == pytest.approx(math.exp(float(loss)), rel=1e-5)
    assert found["f1"] == pytest.approx(float(C.MulticlassF1Score(4)(rows, labels[kept])), abs=1e-6)


def test_a_function_a_whole_function_and_a_torchmetric_give_the_same_error() -> None:
    outputs, labels = numbers(3, 40)
    torch_error = G.MeanAbsoluteError()
    found = evaluate(
        [
            fb.Metric("own", lambda x, y: ((x - y).abs().sum(), len(y)), higher_is_better=False),
            fb.Metric("whole", lambda x, y: (x - y).abs().mean(), higher_is_better=False, whole=True),
            torch_error,
        ],
        outputs, labels,
    ).metrics  # fmt: skip
    assert found["own"] == pytest.approx(found["whole"], rel=1e-5)
    assert found["mean_absolute_error"] == pytest.approx(found["whole"], rel=1e-5)
    assert torch_error.update_count == 0  # the user's object is not changed


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("mae", r"the metric 'mae' needs one output per label: for labels of shape \(2,\) the model returns \(2, 3\)"),
        (fb.Metric("own", lambda x, y: 1 / 0), "the metric 'own' fails on 2 samples .*ZeroDivisionError"),
        (fb.Metric("own", lambda x, y: x), "the metric 'own' must return two numbers"),
    ],
)
def test_a_metric_that_does_not_fit_is_named_before_training(metric: Metrics, message: str) -> None:
    from fedbalancer.training.trainer import TorchTrainer

    samples = (np.ones((4, 2), np.float32), np.array([0, 1, 2, 1]))
    task = fb.Task({"ann": samples}, samples, lambda: torch.nn.Linear(2, 3), metric=metric)
    with pytest.raises(BadData, match=message):
        TorchTrainer(task)


def test_a_metric_of_classes_refuses_floats_and_a_whole_function_must_return_one_number() -> None:
    outputs, labels = numbers(0, 5)
    with pytest.raises(BadData, match="the metric 'f1' needs classes as labels, not floats"):
        evaluate("f1", outputs, labels)
    with pytest.raises(BadData, match="the metric 'own' must return one number; it returned tuple"):
        evaluate(fb.Metric("own", lambda x, y: (1, 2), whole=True), outputs, labels)
    with pytest.raises(BadData, match=r"the metric 'multiclass_accuracy' must return one number \(with torchmetrics"):
        evaluate(C.MulticlassAccuracy(3, average=None), *classes(0, 9, 3))
