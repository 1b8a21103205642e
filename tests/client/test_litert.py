"""A model file trains, looks and evaluates as torch does with the same weights and samples. The file is a small one of
the exporter's; `tests/export` makes it anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_nets import make, samples

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
pytest.importorskip("torch", reason="torch is not installed")

from fedbalancer.client.file_trainer import FileTrainer
from fedbalancer.client.litert import LitertModel
from fedbalancer.client.torch_model import TorchModel
from fedbalancer.client.train import TorchTrainer
from fedbalancer.errors import BadData, TrainingDiverged
from fedbalancer.task import Task
from fedbalancer.types import ClientWork

FILE = Path(__file__).parent / "small.tflite"


@pytest.fixture(scope="module")
def model() -> LitertModel:
    return LitertModel(FILE)


@pytest.fixture(scope="module")
def torch_model() -> TorchModel:
    return TorchModel(make, engine="plain", example=lambda: samples()[0])


def work(**changes: Any) -> ClientWork:
    return replace(ClientWork("ann", np.arange(23), 15, 5, 0.1, 0.0, None, 3), **changes)


@pytest.mark.parametrize(
    "changes",
    [{}, {"mu": 0.7}, {"clip_norm": 0.05}, {"mu": 0.3, "clip_norm": 0.2}, {"batch_size": 1}, {"epoch_batches": 2},
     {"indices": np.array([3, 4, 8, 20])}],
    ids=["plain", "proximal", "clipped", "both", "single samples", "short epochs", "some samples"],
)  # fmt: skip
def test_a_training_is_torchs(model: LitertModel, torch_model: TorchModel, changes: dict[str, Any]) -> None:
    weights = torch_model.initial_weights(0)
    found = model.train(weights, samples(), work(**changes))
    wanted = torch_model.train(weights, samples(), work(**changes))
    assert np.abs(wanted.update).max() > 1e-3
    assert found.update == pytest.approx(wanted.update, abs=1e-5)
    assert found.seen.tolist() == wanted.seen.tolist()
    assert found.losses == pytest.approx(wanted.losses, abs=1e-5)


def test_every_call_begins_with_the_weights_that_it_is_given(model: LitertModel, torch_model: TorchModel) -> None:
    weights = torch_model.initial_weights(0)
    first = model.train(weights, samples(), work(mu=0.5))
    model.train(torch_model.initial_weights(1), samples(), work())
    model.timed(samples(), 5, 3)
    again = model.train(weights, samples(), work(mu=0.5))
    assert first.update.tobytes() == again.update.tobytes()
    assert first.losses.tobytes() == again.losses.tobytes()


def test_losses_and_evaluation_are_torchs(model: LitertModel, torch_model: TorchModel) -> None:
    weights, many = torch_model.initial_weights(2), samples(77)  # more than one piece
    assert model.losses(weights, many, "ann") == pytest.approx(torch_model.losses(weights, many, "ann"), abs=1e-5)
    found, wanted = model.evaluate(weights, many), torch_model.evaluate(weights, many)
    assert (found.accuracy, found.samples) == (wanted.accuracy, wanted.samples)
    assert found.loss == pytest.approx(wanted.loss, abs=1e-5)


def test_what_is_kept_is_the_model_as_it_was_then(model: LitertModel, torch_model: TorchModel) -> None:
    weights = torch_model.initial_weights(0)
    with model.training(weights, samples(), work()) as training:
        training.step(np.arange(5))
        training.keep()
        training.step(np.arange(5, 10))
        kept, result = training.kept(), training.result()
    assert kept.seen.tolist() == list(range(5))
    assert result.seen.tolist() == list(range(10))
    assert np.abs(kept.update - result.update).max() > 1e-4


def test_batches_are_timed(model: LitertModel) -> None:
    seconds = model.timed(samples(), 10, 4)
    assert len(seconds) == 4
    assert min(seconds) > 0


def test_a_training_that_diverges_is_told(model: LitertModel, torch_model: TorchModel) -> None:
    with pytest.raises(TrainingDiverged, match=r"'ann'.*learning rate"):
        model.train(torch_model.initial_weights(0), samples(), work(learning_rate=1e30))


def test_the_trainer_of_a_task_is_torchs() -> None:
    task = Task(clients={"ann": samples(), "bob": samples(9, 1)}, test=samples(5, 2), model=make)
    on_litert, on_torch = FileTrainer(task, FILE), TorchTrainer(task)
    on_litert.prepare()
    assert on_litert.layout == on_torch.layout
    weights = on_torch.initial_weights(0)
    assert on_litert.losses(weights, "bob") == pytest.approx(on_torch.losses(weights, "bob"), abs=1e-5)
    found, wanted = (each.train(weights, work()) for each in (on_litert, on_torch))
    assert found.update == pytest.approx(wanted.update, abs=1e-5)


def test_a_file_that_cannot_be_trained_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="there is no model file"):
        LitertModel(tmp_path / "none.tflite")
    (tmp_path / "text.tflite").write_text("no model")
    with pytest.raises(BadData, match="is no LiteRT model"):
        LitertModel(tmp_path / "text.tflite")
