"""The model of a run as a module: what was trained from the run, what is frozen from the task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments import tinytask
from safetensors.numpy import load_file, save_file

torch = pytest.importorskip("torch", reason="modules need the extra [torch]")

import fedbalancer as fb  # noqa: E402
from fedbalancer.core.errors import BadData  # noqa: E402
from fedbalancer.experiments.execute import execute, resume  # noqa: E402
from fedbalancer.experiments.spec import RunSpec  # noqa: E402


def adapted_task(**changes: Any) -> Any:
    return tinytask.load(model=tinytask.adapted, **changes)


def accuracy(module: Any) -> float:
    features, labels = (torch.as_tensor(part) for part in adapted_task().test)
    with torch.no_grad():
        return float((module(features).argmax(1) == labels).double().mean())


def test_bytes_files_and_results_hold_what_is_trained_only(tmp_path: Path) -> None:
    result = fb.run(adapted_task(), "fedavg+1t", seed=3, out=tmp_path / "run")
    trained = 16 + 16 + 2 * 16 + 2 + 16 + 16
    assert len(result.weights) == trained
    assert result.rounds["down_bytes"][0] == 4 * trained * result.rounds["selected"][0]
    names = {"1.weight", "1.bias", "1.running_mean", "1.running_var", "2.weight", "2.bias"}
    assert set(load_file(tmp_path / "run" / "model.safetensors")) == names
    checkpoints = [load_file(path) for path in (tmp_path / "run" / "checkpoint").rglob("*.safetensors")]
    assert {len(arrays["server.weights"]) for arrays in checkpoints} == {trained}


def test_the_module_of_a_run_scores_as_the_run_did(tmp_path: Path) -> None:
    result = fb.run(adapted_task(), "fedavg+1t", seed=3, out=tmp_path / "run")
    torch.manual_seed(99)  # frozen values do not depend on it
    for source in (result, tmp_path / "run", str(tmp_path / "run" / "model.safetensors")):
        for model in (adapted_task(), tinytask.adapted):
            module = fb.load_model(source, model)
            assert not module.training
            assert accuracy(module) == result.accuracy
    other = {**module.state_dict(), **{"2.bias": torch.zeros(2)}}
    module.load_state_dict(other)  # an ordinary module
    saved = {name: values.numpy() for name, values in module.state_dict().items()}
    save_file(saved, tmp_path / "all.safetensors")


def test_a_model_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    result = fb.run(adapted_task(), "fedavg+1t", rounds=1, out=tmp_path / "run")
    with pytest.raises(BadData, match=r"belongs to another model: they differ in '1.bias'"):
        fb.load_model(tmp_path / "run", tinytask.load())
    with pytest.raises(BadData, match=r"has 98 numbers, but this model has 10"):
        fb.load_model(result, tinytask.load())
    with pytest.raises(BadData, match=r"nothing is not a saved model"):
        fb.load_model(tmp_path / "nothing", tinytask.load())


def test_workers_and_a_resume_use_the_same_frozen_values(tmp_path: Path) -> None:
    alone = fb.run(adapted_task(), "fedavg+1t", seed=3)
    pool = fb.run(adapted_task(), "fedavg+1t", seed=3, workers=2)
    assert pool.weights.tobytes() == alone.weights.tobytes()
    seen: list[int] = []
    spec = RunSpec(task=adapted_task(), method="fedavg+1t", seed=3)
    execute(spec, tmp_path / "cut", progress=lambda p: seen.append(p.round), stopped=lambda: 2 in seen)
    torch.manual_seed(5)
    again = resume(tmp_path / "cut", task=adapted_task())
    assert again.weights.tobytes() == alone.weights.tobytes()
    assert np.isfinite(again.accuracy)
