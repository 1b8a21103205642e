"""Models by name fit the data, travel between processes, and learn."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbalancer as fb
from fedbalancer.core.errors import BadData, BadSetting, UnknownName
from fedbalancer.data.catalogue.summary import describe_task
from fedbalancer.training.trainer import TorchTrainer

RNG = np.random.default_rng(0)
N = 24


def make(x: Any, model: Any, **options: Any) -> fb.Task:
    return fb.Task.from_arrays(x, np.arange(len(x)) % 3, model=model, partition="iid", clients=2, **options)


@pytest.mark.parametrize(
    ("model", "x", "reading", "parameters"),
    [
        ({"name": "mlp", "hidden": [5]}, RNG.normal(size=(N, 4)), "4 numbers", 4 * 5 + 5 + 5 * 3 + 3),
        ({"name": "mlp", "hidden": []}, RNG.normal(size=(N, 2, 2)), "4 numbers", 4 * 3 + 3),
        ({"name": "mlp", "hidden": 5}, RNG.integers(0, 9, size=(N, 4)), "4 numbers", 4 * 5 + 5 + 5 * 3 + 3),
        ({"name": "cnn1d", "filters": [2], "width": 3}, RNG.normal(size=(N, 8, 2)), "2 channels of 8 steps", 14 + 27),
        ({"name": "cnn1d", "filters": [2], "width": 3}, RNG.normal(size=(N, 2, 8)), "2 channels of 8 steps", 14 + 27),
        ({"name": "cnn1d", "filters": [2], "width": 3}, RNG.normal(size=(N, 8)), "1 channel of 8 steps", 8 + 27),
        ({"name": "cnn1d", "filters": [2, 2], "width": 1}, RNG.normal(size=(N, 1)), "1 channel of 1 ", 4 + 6 + 9),
        (
            {"name": "cnn1d", "filters": [2], "width": 3, "channels": "first"},
            RNG.normal(size=(N, 8, 2)), "8 channels of 2 steps", 8 * 2 * 3 + 2 + 2 * 3 + 3,
        ),
        ({"name": "cnn2d", "filters": [2]}, RNG.normal(size=(N, 4, 6)), "1 channel of 4 x 6 pixels", 20 + 12 * 3 + 3),
        ({"name": "cnn2d", "filters": [2]}, RNG.normal(size=(N, 4, 6, 3)), "3 channels of 4 x 6", 56 + 12 * 3 + 3),
        ({"name": "cnn2d", "filters": [2]}, RNG.normal(size=(N, 3, 4, 6)), "3 channels of 4 x 6", 56 + 12 * 3 + 3),
        (
            {"name": "lstm", "hidden": 3, "embedding": 2},
            np.arange(N * 5).reshape(N, 5) % 7, "5 tokens", 7 * 2 + 4 * 3 * (2 + 3 + 2) + 3 * 3 + 3,
        ),
        ({"name": "lstm", "hidden": 3}, RNG.normal(size=(N, 5, 2)), "2 channels of 5", 4 * 3 * (2 + 3 + 2) + 12),
        ({"name": "lstm", "hidden": 3}, RNG.normal(size=(N, 5)), "1 channel of 5", 4 * 3 * (1 + 3 + 2) + 12),
    ],
)  # fmt: skip
def test_shapes_come_from_the_data(model: dict[str, Any], x: Any, reading: str, parameters: int) -> None:
    task = make(x, model)
    task = pickle.loads(pickle.dumps(task))
    trainer = TorchTrainer(task)
    weights = trainer.initial_weights(0)
    assert weights.size == parameters
    assert np.isfinite(trainer.evaluate(weights).loss)
    text = describe_task(task)
    assert reading in text
    assert f"{parameters:,} parameters" in text


def test_channels_last_and_first_see_the_same_picture() -> None:
    x = RNG.normal(size=(N, 3, 4, 6)).astype(np.float32)
    first, last = (TorchTrainer(make(array, "cnn2d")) for array in (x, np.moveaxis(x, 1, -1)))
    weights = first.initial_weights(0)
    assert first.evaluate(weights).loss == pytest.approx(last.evaluate(weights).loss, rel=1e-6)


def test_bytes_are_pixels_between_0_and_1() -> None:
    x = RNG.integers(0, 256, size=(N, 4, 4)).astype(np.uint8)
    task = make(x, "cnn2d")
    assert task.test[0].dtype == np.uint8
    assert "/ 255" in describe_task(task)
    scaled = make(x / np.float32(255), "cnn2d")
    weights = TorchTrainer(task).initial_weights(0)
    of_bytes, of_floats = (TorchTrainer(which).evaluate(weights).loss for which in (task, scaled))
    assert of_bytes == pytest.approx(of_floats, rel=1e-5)


def test_a_built_in_model_learns() -> None:
    y = RNG.integers(0, 2, size=200)
    x = RNG.normal(size=(200, 3)) + 2 * y[:, None]
    task = fb.Task.from_arrays(x, y, model="mlp", users=np.arange(200) % 8, rounds=3, learning_rate=0.1)
    assert fb.run(task, method="fedavg+wfa").accuracy > 0.9


MODULE = """
import torch

def make(shape, classes, width=4):
    return torch.nn.Sequential(torch.nn.Linear(shape[0], width), torch.nn.ReLU(), torch.nn.Linear(width, classes))

def fixed():
    return torch.nn.Linear(4, 3)

def wide(**options):
    return torch.nn.Linear(4, options["classes"])

def needy(size):
    return None

number = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_nets.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_nets"


def test_a_model_of_ones_own_is_told_shape_and_classes(own: str) -> None:
    x = RNG.normal(size=(N, 4))
    assert TorchTrainer(make(x, {"name": f"{own}:make", "width": 7})).initial_weights(0).size == 4 * 7 + 7 + 7 * 3 + 3
    assert TorchTrainer(make(x, f"{own}:fixed")).initial_weights(0).size == 15
    assert "own_nets:fixed: 15 parameters" in describe_task(make(x, f"{own}:fixed"))
    assert TorchTrainer(make(x, {"name": f"{own}:wide", "classes": 3})).initial_weights(0).size == 15


@pytest.mark.parametrize(
    ("model", "kind", "words"),
    [
        ("lstmm", UnknownName, "did you mean lstm"),
        ({"hidden": [3]}, BadSetting, "model needs a name"),
        ({"name": "mlp", "hiden": [3]}, UnknownName, "unknown option of model mlp 'hiden'; did you mean hidden"),
        ({"name": "mlp", "hidden": [0]}, BadSetting, "hidden = 0 of model mlp must be a whole number from 1"),
        ({"name": "mlp", "hidden": "wide"}, BadSetting, "hidden = 'wide'"),
        ({"name": "cnn1d", "channels": "middle"}, BadSetting, "channels = 'middle' .* one of auto, first, last"),
        ({"name": "lstm", "vocabulary": 9}, BadSetting, "vocabulary = 9 is for tokens"),
        ("cnn2d", BadData, r"cnn2d needs samples of shape \(height, width\).* not \(4,\)"),
        ("absent_module:make", BadData, "model 'absent_module:make': there is no module"),
        ("own_nets:maek", UnknownName, "did you mean make"),
        ("own_nets:number", BadData, "must be a function"),
        ("own_nets:needy", BadSetting, "needs a value for size"),
        ({"name": "own_nets:make", "wdth": 3}, UnknownName, "did you mean width"),
    ],
)
def test_mistakes_are_named(own: str, model: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        make(RNG.normal(size=(N, 4)), model)


def test_tokens_must_be_in_the_vocabulary() -> None:
    tokens = np.arange(N * 5).reshape(N, 5) % 7
    with pytest.raises(BadData, match="tokens run from 0 to 6; they must be 0 to 4"):
        make(tokens, {"name": "lstm", "vocabulary": 5})
    with pytest.raises(BadData, match="tokens run from -1 to 5"):
        make(tokens - 1, "lstm")
