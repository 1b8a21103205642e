"""From a task, or a model of your own, to a file that trains on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.files import write_bytes
from fedbalancer.core.task import Samples
from fedbalancer.data import Task
from fedbalancer.export.check import Agreement, check_file
from fedbalancer.export.executorch import executorch, to_executorch
from fedbalancer.export.litert import check_tensorflow, write_litert
from fedbalancer.export.model import TracedModel, traced_model
from fedbalancer.training.model_file import FORMAT
from fedbalancer.training.open_model import SUFFIXES, open_model, runtime_of
from fedbalancer.training.trainer import FORWARD_BATCH

RUNTIMES = {"litert": (check_tensorflow, write_litert), "executorch": (executorch, to_executorch)}
"""By name: what it takes to write a file, and who writes it."""

DEVICE_BATCH = 32
"""Samples of a forward pass on the device: more would need more memory and no less time."""

EXAMPLES = 64
"""Samples by which the model is traced and checked."""


@dataclass(frozen=True)
class Exported:
    """A file that was written."""

    path: Path
    size_bytes: int
    parameters: int
    agreement: Agreement


def check_runtime(runtime: str) -> None:
    """Refuse a runtime that there is not."""
    if runtime not in RUNTIMES:
        raise UnknownName("runtime", runtime, RUNTIMES)


def export(task: Task, path: Path, runtime: str = "litert") -> Exported:
    """Write the file of a task's model, after its losses and gradients were checked against torch's."""
    check_runtime(runtime)
    needed, write = RUNTIMES[runtime]
    _check_place(path, runtime)
    needed()  # before any work
    samples = _examples(task)
    model = traced_model(task.model, task.loss, samples)
    data = write(model, _about(task, model, runtime))
    with TemporaryDirectory(prefix="fedbalancer-export-") as folder:
        made = Path(folder) / f"model{SUFFIXES[runtime]}"
        made.write_bytes(data)
        agreement = check_file(open_model(made), task.model, task.loss, samples)
    write_bytes(path, data)
    return Exported(path, len(data), model.layout.parameters, agreement)


def _check_place(path: Path, runtime: str) -> None:
    """Refuse a place where no file can be, or a name by which it would be taken for another runtime's."""
    if not path.absolute().parent.is_dir():
        raise BadSetting(f"{path}: there is no folder {path.absolute().parent}")
    if path.suffix in SUFFIXES.values() and runtime_of(path) != runtime:
        raise BadSetting(f"{path}: a file for {runtime} ends in {SUFFIXES[runtime]}")


def _examples(task: Task) -> Samples:
    features, labels = task.clients[next(iter(task.clients))]
    return features[:EXAMPLES], labels[:EXAMPLES]


def _about(task: Task, model: TracedModel, runtime: str) -> Mapping[str, Any]:
    # A metric of the user's own is torch's: a device without torch tells the loss only.
    accuracy = task.metric == "accuracy" and model.labels.dtype == "int32" and not model.labels.shape
    # ExecuTorch lays its memory out for the largest batch; LiteRT takes any.
    bound = {"train_batch": max(task.batch_size, DEVICE_BATCH)} if runtime == "executorch" else {}
    return {
        "format": FORMAT,
        "task": task.name,
        "layout": [[name, list(shape)] for name, shape in model.layout],
        "accuracy": accuracy,
        "forward_batch": FORWARD_BATCH if model.looks_at_batches else DEVICE_BATCH,
        **bound,
    }
