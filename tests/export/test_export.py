"""An exported file has torch's losses and gradients; other models are refused with the name of the layer.

Needs `pip install 'fedbalancer[export]'` for LiteRT and `'fedbalancer[executorch]'` for ExecuTorch, which CI does not
have. Tests of a runtime that is not installed are skipped."""

from __future__ import annotations

import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_nets
from typer.testing import CliRunner

pytest.importorskip("torch", reason="torch is not installed")

from torch import nn

from fedbalancer.cli.app import app
from fedbalancer.core.errors import BadData
from fedbalancer.data import Task
from fedbalancer.data.tasks.layers import make_text_model
from fedbalancer.export import executorch, litert
from fedbalancer.export.layers import Spatial
from fedbalancer.export.litert import to_litert
from fedbalancer.export.run import RUNTIMES, export
from fedbalancer.flower.template import write_app
from fedbalancer.training.model_file import SUFFIXES, open_model

NEEDED = {"litert": ("tensorflow", "ai_edge_litert"), "executorch": ("executorch",)}


def need(*packages: str) -> None:
    """Skip a test whose packages are not installed, without loading them: TensorFlow must have its own process."""
    for package in packages:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


@pytest.fixture(params=NEEDED)
def runtime(request: pytest.FixtureRequest) -> str:
    need(*NEEDED[request.param])
    return str(request.param)


def convert_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convert LiteRT's files in this process, so that the code that the test changes is used."""
    if find_spec("triton"):
        pytest.skip("triton and TensorFlow would abort this process")
    monkeypatch.setitem(RUNTIMES, "litert", (lambda: None, to_litert))


def file_of(runtime: str, folder: Path) -> Path:
    return folder / f"model{SUFFIXES[runtime]}"


def task(make: Any, *shape: int, classes: int = 3, **options: Any) -> Task:
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(20, *shape)).astype(np.float32), rng.integers(classes, size=20)
    return Task(clients={"ann": samples}, test=samples, model=make, **options)


def layers(*of: Any) -> Any:
    return lambda: nn.Sequential(*of)


CONVOLUTIONS = (
    nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.Tanh(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(3, 4, 2, dilation=2),
    nn.Sigmoid(), nn.Flatten(), nn.Linear(24, 3),
)  # fmt: skip
NORMED = (
    nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4, track_running_stats=False), nn.MaxPool2d(2, ceil_mode=True),
    nn.ReLU(), nn.Flatten(), nn.Linear(64, 3),
)  # fmt: skip
TEXT = np.random.default_rng(1).integers(5, size=(20, 3)), np.random.default_rng(2).integers(5, size=20)
AVERAGED = (
    nn.Conv2d(2, 3, 3), nn.AvgPool2d(3, 2, 1), nn.ReLU(),
    nn.AvgPool2d(2, 1, 1, ceil_mode=True, count_include_pad=False), nn.AdaptiveAvgPool2d(1),
    nn.Flatten(), nn.Linear(3, 3),
)  # fmt: skip


def frozen() -> Any:
    """The first layer is a constant of the file."""
    return nn.Sequential(nn.Linear(4, 5).requires_grad_(False), nn.Tanh(), nn.Linear(5, 3))


MODELS = {
    "frozen": task(frozen, 4),
    "average pooling": task(layers(*AVERAGED), 2, 9, 8),
    "strided, dilated, overlapping": task(layers(*CONVOLUTIONS), 2, 17, 15),
    "batch norm, ceil": task(layers(*NORMED), 1, 7, 7),
    "recurrent": Task(
        clients={"ann": TEXT}, test=TEXT, model=partial(make_text_model, symbols=5, embedding=3, hidden=4)
    ),
}


def test_the_committed_file_is_what_the_exporter_makes(runtime: str, tmp_path: Path) -> None:
    exported = file_of(runtime, tmp_path)
    arguments = ["export", "small_nets:make", "--shape", "2,12", "--runtime", runtime, "-o", str(exported), "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    facts = json.loads(done.output.splitlines()[-1])
    committed = Path(__file__).parent.parent / "client" / f"small{exported.suffix}"
    assert facts["bytes"] == pytest.approx(committed.stat().st_size, rel=0.1)
    assert max(facts["loss_difference"], facts["gradient_difference"]) < 1e-5
    assert open_model(exported).about == open_model(committed).about


def test_the_file_of_a_new_flower_app_is_that_of_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("flwr", *NEEDED["litert"])
    write_app(tmp_path / "wearable", "litert")
    monkeypatch.syspath_prepend(tmp_path / "wearable")
    arguments = ["export", "wearable.task:model", "--shape", "8", "-o", str(tmp_path / "new.tflite")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    new, template = (open_model(tmp_path / name).about for name in ("new.tflite", "wearable/model.tflite"))
    assert new | {"task": ""} == template | {"task": ""}


class Cut(nn.Linear):
    def forward(self, x: Any) -> Any:
        return super().forward(x).detach()


def test_a_model_without_a_gradient_is_refused(runtime: str, tmp_path: Path) -> None:
    with pytest.raises(BadData, match="it cannot learn"):
        export(task(lambda: Cut(4, 3), 4), file_of(runtime, tmp_path), runtime)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_many_kinds_of_layers_are_torchs(name: str, runtime: str, tmp_path: Path) -> None:
    assert export(MODELS[name], file_of(runtime, tmp_path), runtime).agreement.gradient < 1e-4


def test_a_wrong_gradient_is_refused_with_the_layer(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulates a pooling that gives its gradient to the last place of a window instead of the largest."""

    def wrong(self: Spatial, grad: Any, x: Any, which: Any, windows: Any) -> Any:
        return right(self, grad, x, 0 * which + 1, windows)

    if runtime == "litert":
        convert_here(monkeypatch)
    right = Spatial.max_pool_backward
    monkeypatch.setattr(Spatial, "max_pool_backward", wrong)
    with pytest.raises(BadData, match=r"layer 1 \(Conv1d\): the gradient of its weight differs"):
        export(small_nets.task(), file_of(runtime, tmp_path), runtime)
    assert not list(tmp_path.iterdir()), "no file is left"


def test_a_layer_without_counterpart_is_refused_by_name(runtime: str, tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"layer 1 \(Dropout\)"):
        export(task(layers(nn.Linear(4, 6), nn.Dropout(), nn.Linear(6, 3)), 4), file_of(runtime, tmp_path), runtime)


def test_an_operation_that_litert_has_not_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need(*NEEDED["litert"])
    convert_here(monkeypatch)
    monkeypatch.delitem(litert.OPERATIONS, "aten.max_pool2d_with_indices_backward.default")
    with pytest.raises(BadData, match=r"layer 2 \(MaxPool1d\)"):
        export(small_nets.task(), tmp_path / "model.tflite")


def test_what_executorch_has_no_kernel_for_or_a_wrong_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses ExecuTorch's gradients of pooling."""
    pytest.importorskip("executorch", reason="executorch is not installed")
    for name in ("avg_pool2d", "max_pool2d_with_indices"):
        for kind in (f"aten.{name}.default", f"aten.{name}_backward.default"):
            monkeypatch.delitem(executorch.OPERATIONS, kind)
    with pytest.raises(BadData, match=r"layer .*avg_pool2d_backward.* has no kernel in ExecuTorch"):
        export(MODELS["average pooling"], tmp_path / "model.pte", "executorch")
    with pytest.raises(BadData, match=r"layer 1 \(Conv1d\): the gradient of its weight differs"):
        export(small_nets.task(), tmp_path / "model.pte", "executorch")
