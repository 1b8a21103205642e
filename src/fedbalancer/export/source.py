"""What is to be exported: a task by name, or a model of your own code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.data import Task, load_task
from fedbalancer.data.registry import import_attribute

EXAMPLES = 16


def task_of(name: str, *, scale: str = "small", variant: str | None = None, shape: Sequence[int] | None = None) -> Task:
    """The task of that name or place; with the `shape` of a sample, `name` is "package.module:function" of a function
    that makes a torch model, whose outputs are scores of classes."""
    if shape is None:
        return load_task(name, scale=scale, variant=variant)
    if ":" not in name:
        raise BadSetting(f"--shape is for a model of your own, package.module:function; {name!r} knows its samples")
    if not shape or min(shape) < 1:
        raise BadSetting(f"shape = {','.join(map(str, shape))} must be whole numbers over 0, as in 1,28,28")
    return _of_model(import_attribute(name, "model"), name, tuple(shape))


def _of_model(make: Any, name: str, shape: tuple[int, ...]) -> Task:
    """A task of a model alone, with made-up samples: enough to trace and check it."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(EXAMPLES, *shape)).astype(np.float32)
    labels = rng.integers(_classes(make, name, features), size=EXAMPLES)
    samples = features, labels
    return Task(clients={"example": samples}, test=samples, model=make, name=name)


def _classes(make: Any, name: str, features: Any) -> int:
    """How many classes the model tells apart."""
    import torch

    from fedbalancer.training.model_check import describe_failure
    from fedbalancer.training.tensors import build_module

    if not callable(make):
        raise BadData(f"{name} must be a function that makes a torch model, not {type(make).__name__}")
    batch = torch.from_numpy(features)
    try:
        with torch.no_grad():
            outputs = build_module(make).eval()(batch)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise BadData(f"{name}: {describe_failure(batch, error)}") from error
    if not isinstance(outputs, torch.Tensor) or outputs.ndim != 2:
        raise BadData(f"{name}: the model must give (samples, classes) scores; other outputs need a Task with a loss")
    return int(outputs.shape[1])
