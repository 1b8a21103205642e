"""Exports the model of a task, or a custom model, to a file that trains on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedbalancer.core.errors import BadData, BadSetting, UnknownName
from fedbalancer.core.files import write_bytes
from fedbalancer.core.metrics import ACCURACY
from fedbalancer.core.task import Samples
from fedbalancer.data import Task, load_task
from fedbalancer.data.registry import import_attribute
from fedbalancer.export.check import Agreement, check_file
from fedbalancer.export.executorch import load_exir, to_executorch
from fedbalancer.export.litert import check_tensorflow, write_litert
from fedbalancer.export.trace import TracedModel, trace_model
from fedbalancer.training.model_file import FORMAT, SUFFIXES, open_model, runtime_of
from fedbalancer.training.trainer import FORWARD_BATCH

RUNTIMES = {"litert": (check_tensorflow, write_litert), "executorch": (load_exir, to_executorch)}
"""For each runtime, the function that checks its installation and the function that writes a file."""

DEVICE_BATCH = 32
"""Samples per forward pass on the device; more would need more memory without saving time."""

EXAMPLES = 64
"""Samples used to trace and check the model."""


@dataclass(frozen=True)
class ExportResult:
    """A written model file.

    Args:
        path: Path of the file.
        size_bytes: Size of the file.
        parameters: Number of parameters.
        agreement: Differences from torch.
    """

    path: Path
    size_bytes: int
    parameters: int
    agreement: Agreement


def check_runtime(runtime: str) -> None:
    """Raise `UnknownName` for an unknown runtime."""
    if runtime not in RUNTIMES:
        raise UnknownName("runtime", runtime, RUNTIMES)


def export(task: Task, path: Path, runtime: str = "litert") -> ExportResult:
    """Write a task's model to a file, after checking its losses and gradients against torch.

    Args:
        task: The task.
        path: Path of the new file.
        runtime: `"litert"` or `"executorch"`.

    Returns:
        Facts about the file.

    Raises:
        BadData: The model cannot be converted, or the file disagrees with torch.
        BadSetting: The path is not usable.
        MissingData: The runtime is not installed.
    """
    check_runtime(runtime)
    check_installed, write = RUNTIMES[runtime]
    _check_path(path, runtime)
    check_installed()  # before any work
    samples = _examples(task)
    model = trace_model(task.model, task.loss, samples)
    data = write(model, _about(task, model, runtime))
    with TemporaryDirectory(prefix="fedbalancer-export-") as folder:
        file = Path(folder) / f"model{SUFFIXES[runtime]}"
        file.write_bytes(data)
        agreement = check_file(open_model(file), task.model, task.loss, samples)
    write_bytes(path, data)
    return ExportResult(path, len(data), model.layout.parameters, agreement)


def _check_path(path: Path, runtime: str) -> None:
    """Refuse a path without a folder, or with the suffix of another runtime."""
    if not path.absolute().parent.is_dir():
        raise BadSetting(f"{path}: there is no folder {path.absolute().parent}")
    if path.suffix in SUFFIXES.values() and runtime_of(path) != runtime:
        raise BadSetting(f"{path}: a file for {runtime} ends in {SUFFIXES[runtime]}")


def _examples(task: Task) -> Samples:
    features, labels = task.samples(next(iter(task.clients)))
    if task.forward is not None or not isinstance(features, np.ndarray) or not isinstance(labels, np.ndarray):
        raise BadData(f"task {task.name!r} cannot be exported: its model needs one array of features, no forward=")
    return features[:EXAMPLES], labels[:EXAMPLES]


def _about(task: Task, model: TracedModel, runtime: str) -> Mapping[str, Any]:
    # A custom metric needs torch; a device without torch reports the loss only.
    plain = any(metric == ACCURACY and metric.function is None for metric in task.metrics)
    accuracy = plain and model.labels.dtype == "int32" and not model.labels.shape
    # ExecuTorch plans memory for the largest batch; LiteRT accepts any.
    bound = {"train_batch": max(task.batch_size, DEVICE_BATCH)} if runtime == "executorch" else {}
    return {
        "format": FORMAT,
        "task": task.name,
        "layout": [[name, list(shape)] for name, shape in model.layout],
        "accuracy": accuracy,
        "forward_batch": FORWARD_BATCH if model.depends_on_batch else DEVICE_BATCH,
        **bound,
    }


MODEL_SAMPLES = 16
"""Random samples made for a model without a task."""


def load_source(
    name: str, *, scale: str = "small", variant: str | None = None, shape: Sequence[int] | None = None
) -> Task:
    """Load what is exported: a task, or a task made from a custom model.

    Args:
        name: Name or path of a task. With `shape`: "package.module:function" of a function that returns a torch model
            whose outputs are class scores.
        scale: Scale of the task.
        variant: Variant of the task.
        shape: Shape of one sample of a custom model.

    Returns:
        The task.

    Raises:
        BadSetting: `shape` does not match `name`, or is invalid.
        BadData: The model cannot be used.
    """
    if shape is None:
        return load_task(name, scale=scale, variant=variant)
    if ":" not in name:
        raise BadSetting(f"--shape is only for a custom model, package.module:function; {name!r} has its own samples")
    if not shape or min(shape) < 1:
        raise BadSetting(f"shape = {','.join(map(str, shape))} must be positive integers, such as 1,28,28")
    return _model_task(import_attribute(name, "model"), name, tuple(shape))


def _model_task(make: Any, name: str, shape: tuple[int, ...]) -> Task:
    """Return a task with random samples, which are enough to trace and check a model."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(MODEL_SAMPLES, *shape)).astype(np.float32)
    labels = rng.integers(_count_classes(make, name, features), size=MODEL_SAMPLES)
    samples = features, labels
    return Task(clients={"example": samples}, test=samples, model=make, name=name)


def _count_classes(make: Any, name: str, features: Any) -> int:
    """Return the number of classes that the model distinguishes."""
    import torch

    from fedbalancer.training.model_check import describe_failure
    from fedbalancer.training.tensors import build_module

    if not callable(make):
        raise BadData(f"{name} must be a function that returns a torch model, not {type(make).__name__}")
    batch = torch.from_numpy(features)
    try:
        with torch.no_grad():
            outputs = build_module(make).eval()(batch)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise BadData(f"{name}: {describe_failure(batch, error)}") from error
    if not isinstance(outputs, torch.Tensor) or outputs.ndim != 2:
        raise BadData(f"{name}: the model must return (samples, classes) scores; other outputs need a Task with a loss")
    return int(outputs.shape[1])
