"""Exports the model of a task, or a custom model, to a file that trains on a device.

The file is checked against torch, layer by layer: its outputs and losses on random batches, and its gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbalancer.core.errors import BadData, BadSetting, UnknownName
from fedbalancer.core.files import write_bytes
from fedbalancer.core.metrics import ACCURACY
from fedbalancer.core.task import Samples
from fedbalancer.core.types import ClientWork, FloatArray, Weights
from fedbalancer.data import Task, load_task
from fedbalancer.data.registry import import_attribute
from fedbalancer.export.executorch import load_exir, to_executorch
from fedbalancer.export.litert import check_tensorflow, write_litert
from fedbalancer.export.trace import TracedModel, layer_name, trace_model
from fedbalancer.training.model_file import FORMAT, SUFFIXES, ModelFile, open_model, runtime_of
from fedbalancer.training.tensors import FlatModule, make_batch, prepare_samples, resolve_loss
from fedbalancer.training.trainer import FORWARD_BATCH

if TYPE_CHECKING:
    import torch


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


BATCHES = (10, 1, 3)
"""Sizes of the random batches; all differ from those of the trace."""

LOSS_TOLERANCE, GRADIENT_TOLERANCE, GRADIENT_FLOOR, ROUNDING_FACTOR = 1e-5, 1e-3, 1e-5, 8.0
"""Largest error against torch in double precision.

A loss or output may differ by `LOSS_TOLERANCE` times the largest value or 1. A gradient may differ by
`GRADIENT_TOLERANCE` times the largest of its layer plus `GRADIENT_FLOOR` times the largest of the model. Any value may
differ by `ROUNDING_FACTOR` times torch's own error in single precision. Rounding errors are far below these bounds, a
wrong operator is far above.
"""

RATE = 1000.0
"""Learning rate of the checked step, large enough to read the gradient from the change of the weights."""


@dataclass(frozen=True)
class Agreement:
    """Largest differences between a file and torch.

    Args:
        loss: Largest absolute difference of a loss.
        gradient: Largest difference of a gradient, relative to the largest gradient of its layer.
    """

    loss: float
    gradient: float


@dataclass(frozen=True, eq=False)
class Results:
    """Results of a model for one batch.

    Args:
        outputs: Outputs in evaluation mode.
        losses: Losses in evaluation mode.
        step_losses: Losses of a training step.
        gradients: Gradients of a training step, by parameter name.
    """

    outputs: FloatArray
    losses: FloatArray
    step_losses: FloatArray
    gradients: dict[str, FloatArray]


def check_file(model: ModelFile, make: Callable[[], Any], loss: Any, samples: Samples) -> Agreement:
    """Compare a model file with torch on random batches.

    Args:
        model: The opened file.
        make: Function that returns the torch model.
        loss: Loss name or function of the task.
        samples: Example samples; the random batches have their shapes, types and labels.

    Returns:
        The largest differences.

    Raises:
        BadData: A difference is too large; the message names the layer.
    """
    flat = FlatModule(make)
    worst = Agreement(0.0, 0.0)
    for number, batch in enumerate(_random_batches(prepare_samples(samples))):
        weights = flat.initial(number)
        flat.load(weights)
        single, double = (_run_torch(module, loss, batch) for module in (flat.module, deepcopy(flat.module).double()))
        agreement = _compare(flat.module, _run_file(model, weights, batch), single, double)
        worst = Agreement(max(worst.loss, agreement.loss), max(worst.gradient, agreement.gradient))
    return worst


def _random_batches(samples: Samples) -> Iterator[Samples]:
    """Yield batches of random features with existing labels. Some samples are all zeros, for ties in a pooling."""
    rng, (features, labels) = np.random.default_rng(0), samples
    for size in BATCHES:
        chosen = rng.integers(len(labels), size=size)
        random = features[chosen]
        if features.dtype != np.int64:
            random = rng.normal(size=random.shape).astype(np.float32)
            random[size // 2 + 1 :] = 0.0
        yield random, labels[chosen]


def _run_torch(module: torch.nn.Module, loss: Any, batch: Samples) -> Results:
    """Compute the results in the precision of the module."""
    import torch

    parameters = dict(module.named_parameters())
    kind = next(iter(parameters.values())).dtype
    features, labels = (part.to(kind) if part.is_floating_point() else part for part in map(_tensor, batch))
    values = resolve_loss(loss)
    with torch.no_grad():
        outputs = module.eval()(features)
        losses = values(outputs, labels)
    step_losses = values(module.train()(features), labels)
    trained = {name: each for name, each in parameters.items() if each.requires_grad}
    gradients = torch.autograd.grad(step_losses.mean(), list(trained.values()), allow_unused=True)
    present = {name: each for name, each in zip(trained, gradients, strict=True) if each is not None}
    zeros = {name: np.zeros(each.shape) for name, each in trained.items()}
    computed = {name: each.double().numpy() for name, each in present.items()}
    plain = [part.detach().double().numpy() for part in (outputs, losses, step_losses)]
    return Results(plain[0], plain[1], plain[2], zeros | computed)


def _tensor(part: Any) -> torch.Tensor:
    tensor: torch.Tensor = make_batch(part, slice(None))
    return tensor


def _run_file(model: ModelFile, weights: Weights, batch: Samples) -> Results:
    losses = model.losses(weights, batch, "check")
    outputs = model.infer(batch[0]).astype(np.float64)
    size = len(batch[1])
    step_losses = model.step(*batch, ClientWork("check", np.arange(size), 1, size, RATE, 0.0, None, 0))
    before, after = (model.layout.split(each) for each in (weights, model.get()))
    gradients = {name: (before[name].astype(np.float64) - after[name]) / RATE for name in before}
    return Results(outputs, losses, step_losses, gradients)


def _compare(module: torch.nn.Module, file: Results, single: Results, double: Results) -> Agreement:
    loss = 0.0
    for what in ("outputs", "losses", "step_losses"):
        true = getattr(double, what)
        off, own = (float(np.abs(getattr(each, what) - true).max()) for each in (file, single))
        if not off <= max(LOSS_TOLERANCE * max(float(np.abs(true).max()), 1.0), ROUNDING_FACTOR * own):
            raise BadData(f"the file's {what.replace('_', ' ')} differ from torch's by {off:.1e}; it is not written")
        loss = max(loss, off) if what != "outputs" else loss
    floor = GRADIENT_FLOOR * max(float(np.abs(each).max()) for each in double.gradients.values())
    shares = [_gradient_error(module, name, file, single, double, floor) for name in double.gradients]
    return Agreement(loss, max(shares))


def _gradient_error(
    module: torch.nn.Module, name: str, file: Results, single: Results, double: Results, floor: float
) -> float:
    """Return the relative error of one tensor's gradient."""
    true = double.gradients[name]
    off, own = (float(np.abs(each.gradients[name] - true).max()) for each in (file, single))
    largest = float(np.abs(true).max())
    if not off <= max(GRADIENT_TOLERANCE * largest + floor, ROUNDING_FACTOR * own):
        layer, _, tensor = name.rpartition(".")
        raise BadData(
            f"layer {layer_name(layer, module.get_submodule(layer))}: the gradient of its {tensor} differs from "
            f"torch's by {off:.1e}, where its largest is {largest:.1e}; the file is not written"
        )
    return off / (largest + floor / GRADIENT_TOLERANCE)
