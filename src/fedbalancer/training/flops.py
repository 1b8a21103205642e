"""Counts the floating-point operations of a task's model, with torch's own counter."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from fedbalancer.core.cost import BatchCost
from fedbalancer.core.errors import MissingData
from fedbalancer.core.samples import take, typical_rows
from fedbalancer.core.task import BaseTask
from fedbalancer.core.types import ClientWork

COUNTED_SAMPLES = 2
"""Samples of the counted batch. A batch norm needs two."""

_counted: WeakKeyDictionary[BaseTask, BatchCost] = WeakKeyDictionary()


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
    if task not in _counted:
        try:
            import torch  # noqa: F401
        except ImportError as error:
            raise MissingData(
                f"task {task.name!r} has no latency, and estimating it from the model's FLOPs needs PyTorch; install "
                "it with: pip install 'fedbalancer[torch]', or set latency"
            ) from error
        _counted[task] = _count(task)
    return _counted[task]


def _count(task: BaseTask) -> BatchCost:
    from fedbalancer.training.trainer import TorchTrainer

    client = next((name for name, size in task.sizes.items() if size >= COUNTED_SAMPLES), next(iter(task.sizes)))
    samples = task.samples(client)
    rows = typical_rows(samples[0], COUNTED_SAMPLES)
    features, labels = (take(part, rows) for part in samples)
    small = replace(task, clients={client: (features, labels)}, test=(features, labels), client_tests={})
    trainer, size = TorchTrainer(small, "plain"), len(labels)
    work = ClientWork(client, np.arange(size), 1, size, 1e-9, 0.0, None, 0)
    weights = trainer.initial_weights(0)
    return BatchCost(
        train_flops=_total(lambda: trainer.train(weights, work)) / size,
        forward_flops=_total(lambda: trainer.losses(weights, client)) / size,
        batch_size=task.batch_size,
    )


def _total(compute: Callable[[], Any]) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with _countable_kernels(), FlopCounterMode(display=False) as counter:
        compute()
    return int(counter.get_total_flops())


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
