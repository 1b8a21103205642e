"""The trained model of a run as a `torch.nn.Module`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from fedbalancer.core.errors import BadData
from fedbalancer.core.task import BaseTask
from fedbalancer.core.types import Layout, Weights
from fedbalancer.training.tensors import build_module, trained_tensors

if TYPE_CHECKING:
    import torch

FILE = "model.safetensors"


@runtime_checkable
class HasWeights(Protocol):
    """A result that holds the weights of its final model, such as `RunResult`."""

    @property
    def weights(self) -> Weights: ...


def load_model(run: Path | str | HasWeights, model: BaseTask | Callable[[], Any]) -> torch.nn.Module:
    """Return the trained model of a run.

    A run saves only what training changes. Frozen parameters come from the task's model function, as in the run.

    Args:
        run: The result of a run, its folder, or its file `model.safetensors`.
        model: The run's task, or the function that makes its module.

    Returns:
        A new module in evaluation mode, in float32 on the CPU.

    Raises:
        BadData: If there is no such file, or it belongs to another model.

    Example:
        >>> import fedbalancer as fb
        >>> task = fb.load_task("synthetic", users=8)
        >>> fb.load_model(fb.run(task, "fedavg+1t", rounds=2), task)
        Linear(in_features=60, out_features=10, bias=True)
    """
    module = build_module(model.model if isinstance(model, BaseTask) else model)
    tensors = trained_tensors(module)
    arrays = _read(run, Layout((name, tuple(tensor.shape)) for name, tensor in tensors.items()))
    import torch

    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(torch.tensor(arrays[name]))
    return module.eval()


def _read(run: Path | str | HasWeights, layout: Layout) -> dict[str, Any]:
    """Return the named arrays of a run, checked against the layout of the module."""
    if not isinstance(run, Path | str):
        if len(run.weights) != layout.parameters:
            raise BadData(f"the run's model has {len(run.weights)} numbers, but this model has {layout.parameters}")
        return dict(layout.split(run.weights))
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = Path(run) / FILE if Path(run).is_dir() else Path(run)
    try:
        arrays: dict[str, Any] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise BadData(f"{path} is not a saved model: {error}") from error
    saved = {name: tuple(array.shape) for name, array in arrays.items()}
    if different := sorted(name for name in {*saved, *dict(layout)} if saved.get(name) != dict(layout).get(name)):
        raise BadData(f"{path} belongs to another model: they differ in {', '.join(map(repr, different[:3]))}")
    return arrays
