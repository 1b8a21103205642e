"""Counts the floating-point operations of a task's model, with torch's own counter."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from fedbalancer.core.cost import BatchCost
from fedbalancer.core.errors import MissingData
from fedbalancer.core.samples import take, typical_rows
from fedbalancer.core.task import BaseTask
from fedbalancer.core.types import ClientWork, Layout

COUNTED_SAMPLES = 2
"""Samples of the counted batch. A batch norm needs two."""

_counted: WeakKeyDictionary[BaseTask, tuple[BatchCost, dict[str, float]]] = WeakKeyDictionary()


def count_flops(task: BaseTask) -> BatchCost:
    """Count the FLOPs per sample of a training step and of a forward pass.

    Two samples of a client are trained in one step of the plain backend, so the count includes the loss and respects
    frozen parameters. The counter knows products of matrices and convolutions. Fused LSTM and attention kernels
    are replaced by these for the count. Elementwise operations and embeddings are not counted. If samples differ in
    length, the two have about the median length.

    Args:
        task: The task.

    Returns:
        The cost of a batch of the task's batch size.

    Raises:
        MissingData: If torch is not installed.
        BadData: If model, loss and data do not fit together.

    >>> import numpy as np, torch
    >>> from fedbalancer import Task
    >>> samples = np.zeros((4, 3), dtype=np.float32), np.array([0, 1, 0, 1])
    >>> count_flops(Task(clients={"ann": samples}, test=samples, model=lambda: torch.nn.Linear(3, 2)))
    BatchCost(train_flops=24.0, forward_flops=12.0, batch_size=10)
    """
    return _cached(task, f"task {task.name!r} has no latency, and estimating it from", ", or set latency")[0]


def tensor_flops(task: BaseTask) -> dict[str, float]:
    """Count which share of the FLOPs of a training step each tensor of the model causes.

    The FLOPs of a layer are divided among its tensors by their size.

    Args:
        task: The task.

    Returns:
        Shares by the name of the tensor, in total 1; empty if the counter knows no operation of the model.

    Raises:
        MissingData: If torch is not installed.
        BadData: If model, loss and data do not fit together.

    >>> import numpy as np, torch
    >>> from fedbalancer import Task
    >>> samples = np.zeros((4, 3), dtype=np.float32), np.array([0, 1, 0, 1])
    >>> net = lambda: torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 2, bias=False))
    >>> tensor_flops(Task(clients={"ann": samples}, test=samples, model=net))  # the first layer has no input gradient
    {'0.weight': 0.5, '1.weight': 0.5}
    """
    return _cached(task, f"task {task.name!r} runs with a method that trains parts of the model, and counting", "")[1]


def _cached(task: BaseTask, why: str, advice: str) -> tuple[BatchCost, dict[str, float]]:
    if task not in _counted:
        try:
            import torch  # noqa: F401
        except ImportError as error:
            raise MissingData(
                f"{why} the model's FLOPs needs PyTorch; install it with: pip install 'fedbalancer[torch]'{advice}"
            ) from error
        _counted[task] = _count(task)
    return _counted[task]


def _count(task: BaseTask) -> tuple[BatchCost, dict[str, float]]:
    from fedbalancer.training.trainer import TorchTrainer

    client = next((name for name, size in task.sizes.items() if size >= COUNTED_SAMPLES), next(iter(task.sizes)))
    samples = task.samples(client)
    rows = typical_rows(samples[0], COUNTED_SAMPLES)
    features, labels = (take(part, rows) for part in samples)
    small = replace(task, clients={client: (features, labels)}, test=(features, labels), client_tests={})
    trainer, size = TorchTrainer(small, "plain"), len(labels)
    work = ClientWork(client, np.arange(size), 1, size, 1e-9, 0.0, None, 0)
    weights = trainer.initial_weights(0)
    trained, forward = (
        _by_module(lambda: trainer.train(weights, work)), _by_module(lambda: trainer.losses(weights, client))
    )  # fmt: skip
    cost = BatchCost(trained[TOTAL] / size, forward[TOTAL] / size, task.batch_size)
    return cost, _by_tensor(trained, trainer.layout)


TOTAL = "Global"
"""The counter's name for everything."""


def _by_module(compute: Callable[[], Any]) -> dict[str, int]:
    """Return the FLOPs of every module, with those of its children, by the counter's names."""
    from torch.utils.flop_counter import FlopCounterMode

    with _countable_kernels(), FlopCounterMode(display=False) as counter:
        compute()
    return {TOTAL: 0} | {name: sum(counts.values()) for name, counts in counter.get_flop_counts().items()}


def _by_tensor(flops: Mapping[str, int], layout: Layout) -> dict[str, float]:
    """Return the share of every tensor. The counter's names are those of the layers, after the class of the model."""
    paths = {name.partition(".")[2]: count for name, count in flops.items() if name != TOTAL}
    sizes = dict(zip((name for name, _ in layout), layout.sizes, strict=True))
    layers: dict[str, list[str]] = {}
    for name in sizes:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    counted = dict.fromkeys(sizes, 0.0)
    for layer, names in layers.items():
        inside = [path for path in paths if path != layer and (path.startswith(f"{layer}.") or not layer)]
        own = paths.get(layer, 0) - sum(paths[path] for path in inside if not _is_within(path, inside))
        for name in names:
            counted[name] = own * sizes[name] / sum(sizes[each] for each in names)
    total = sum(counted.values())
    return {name: value / total for name, value in counted.items()} if total else {}


def _is_within(path: str, others: list[str]) -> bool:
    return any(path.startswith(f"{other}.") for other in others)


@contextmanager
def _countable_kernels() -> Iterator[None]:
    """A context without the fused kernels that torch's counter does not know."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    fast_path = torch.backends.mha.get_fastpath_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about settings of other devices, which the context also reads
        with torch.backends.mkldnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH):
            torch.backends.mha.set_fastpath_enabled(False)
            try:
                yield
            finally:
                torch.backends.mha.set_fastpath_enabled(fast_path)
