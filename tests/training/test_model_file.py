"""A model file trains, looks and evaluates as torch does with the same weights and samples, whichever its runtime.
The files are small ones of the exporter's; `tests/export` makes them again."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_nets import make, samples

pytest.importorskip("torch", reason="torch is not installed")

from fedbalancer.core.errors import BadData, BadSetting, MissingData, TrainingDiverged
from fedbalancer.core.task import BaseTask
from fedbalancer.core.types import ClientWork, TrainOptions
from fedbalancer.training.model_file import FileTrainer, ModelFile, open_model
from fedbalancer.training.trainer import TorchModel, TorchTrainer

FOLDER = Path(__file__).parent
PACKAGES = {".tflite": "ai_edge_litert", ".pte": "executorch"}


@pytest.fixture(scope="module", params=PACKAGES)
def file(request: pytest.FixtureRequest) -> Path:
    pytest.importorskip(PACKAGES[request.param], reason="the runtime is not installed")
    return FOLDER / f"small{request.param}"


@pytest.fixture(scope="module")
def model(file: Path) -> ModelFile:
    return open_model(file)


@pytest.fixture(scope="module")
def torch_model() -> TorchModel:
    return TorchModel(make, backend="plain", example=lambda: samples()[0])


def work(**changes: Any) -> ClientWork:
    return replace(ClientWork("ann", np.arange(23), 15, 5, 0.1, 0.0, None, 3), **changes)


@pytest.mark.parametrize(
    "options", [TrainOptions("adamw"), TrainOptions(accumulate=2), TrainOptions(dtype="bfloat16")], ids=str
)
def test_a_file_refuses_what_it_cannot_train(model: ModelFile, torch_model: TorchModel, options: TrainOptions) -> None:
    with pytest.raises(BadSetting, match="a model file trains with plain SGD"):
        model.train(torch_model.initial_weights(0), samples(), work(training=options))


@pytest.mark.parametrize(
    "changes",
    [{}, {"training": TrainOptions(drop_last=True)},
     {"mu": 0.7}, {"clip_norm": 0.05}, {"mu": 0.3, "clip_norm": 0.2}, {"batch_size": 1}, {"epoch_batches": 2},
     {"indices": np.array([3, 4, 8, 20])}],
    ids=["plain", "drop last", "proximal", "clipped", "both", "single samples", "short epochs", "some samples"],
)  # fmt: skip
def test_a_training_is_torchs(model: ModelFile, torch_model: TorchModel, changes: dict[str, Any]) -> None:
    weights = torch_model.initial_weights(0)
    found = model.train(weights, samples(), work(**changes))
    wanted = torch_model.train(weights, samples(), work(**changes))
    assert np.abs(wanted.update).max() > 1e-3
    assert found.update == pytest.approx(wanted.update, abs=1e-5)
    assert found.seen.tolist() == wanted.seen.tolist()
    assert found.losses == pytest.approx(wanted.losses, abs=1e-5)


def test_every_call_begins_with_the_weights_that_it_is_given(model: ModelFile, torch_model: TorchModel) -> None:
    weights = torch_model.initial_weights(0)
    first = model.train(weights, samples(), work(mu=0.5))
    model.train(torch_model.initial_weights(1), samples(), work())
    model.time_batches(samples(), 5, 3)
    again = model.train(weights, samples(), work(mu=0.5))
    assert first.update.tobytes() == again.update.tobytes()
    assert first.losses.tobytes() == again.losses.tobytes()


def test_losses_and_evaluation_are_torchs(model: ModelFile, torch_model: TorchModel) -> None:
    weights, many = torch_model.initial_weights(2), samples(77)  # more than one piece
    assert model.losses(weights, many, "ann") == pytest.approx(torch_model.losses(weights, many, "ann"), abs=1e-5)
    found, wanted = model.evaluate(weights, many), torch_model.evaluate(weights, many)
    assert (found.accuracy, found.samples) == (wanted.accuracy, wanted.samples)
    assert found.loss == pytest.approx(wanted.loss, abs=1e-5)


def test_what_is_kept_is_the_model_as_it_was_then(model: ModelFile, torch_model: TorchModel) -> None:
    weights = torch_model.initial_weights(0)
    with model.training(weights, samples(), work()) as training:
        training.step(np.arange(5))
        training.keep()
        training.step(np.arange(5, 10))
        kept, result = training.kept(), training.result()
    assert kept.seen.tolist() == list(range(5))
    assert result.seen.tolist() == list(range(10))
    assert np.abs(kept.update - result.update).max() > 1e-4


def test_batches_are_timed(model: ModelFile) -> None:
    seconds = model.time_batches(samples(), 10, 4)
    assert len(seconds) == 4
    assert min(seconds) > 0


def test_a_training_that_diverges_is_told(model: ModelFile, torch_model: TorchModel) -> None:
    with pytest.raises(TrainingDiverged, match=r"'ann'.*learning rate"):
        model.train(torch_model.initial_weights(0), samples(), work(learning_rate=1e30))


def test_the_trainer_of_a_task_is_torchs(file: Path) -> None:
    task = BaseTask(clients={"ann": samples(), "bob": samples(9, 1)}, test=samples(5, 2), model=make)
    of_file, on_torch = FileTrainer(task, file), TorchTrainer(task)
    of_file.prepare()
    assert of_file.layout == on_torch.layout
    weights = on_torch.initial_weights(0)
    assert of_file.losses(weights, "bob") == pytest.approx(on_torch.losses(weights, "bob"), abs=1e-5)
    found, wanted = (each.train(weights, work()) for each in (of_file, on_torch))
    assert found.update == pytest.approx(wanted.update, abs=1e-5)


def test_a_file_that_cannot_be_trained_is_told(file: Path, tmp_path: Path) -> None:
    with pytest.raises(BadData, match="there is no model file"):
        open_model(tmp_path / f"none{file.suffix}")
    (tmp_path / f"text{file.suffix}").write_text("no model")
    with pytest.raises(BadData, match=r"is not an? (LiteRT|ExecuTorch) model"):
        open_model(tmp_path / f"text{file.suffix}")


def test_a_file_by_another_name_is_known_by_what_is_in_it(file: Path, model: ModelFile, tmp_path: Path) -> None:
    shutil.copy(file, tmp_path / "model.json")
    found = open_model(tmp_path / "model.json")
    assert type(found) is type(model)
    assert found.about == model.about


def test_a_batch_beyond_what_executorch_laid_out_is_told(torch_model: TorchModel) -> None:
    pytest.importorskip("executorch", reason="ExecuTorch is not installed")
    model, weights = open_model(FOLDER / "small.pte"), torch_model.initial_weights(0)
    many = work(indices=np.arange(64), batch_size=64)
    with pytest.raises(BadSetting, match=r"64 samples is too large for this file, whose memory is laid out for 32"):
        model.train(weights, samples(64), many)
    most = work(indices=np.arange(32), batch_size=32)
    wanted = torch_model.train(weights, samples(64), most)
    assert model.train(weights, samples(64), most).update == pytest.approx(wanted.update, abs=1e-5)


@pytest.mark.parametrize(("name", "package", "extra"), [
    ("a.tflite", "ai_edge_litert.interpreter", "device"), ("a.pte", "executorch.runtime", "executorch"),
])  # fmt: skip
def test_without_its_runtime_the_extra_is_named(
    name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingData, match=rf"pip install 'fedbalancer\[{extra}\]'"):
        open_model(FOLDER / name)
