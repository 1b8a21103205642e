"""A torch model with its loss, traced: what its file is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbalancer.core.errors import BadData
from fedbalancer.core.task import Samples
from fedbalancer.core.types import Layout
from fedbalancer.export.trace import Traced, traced
from fedbalancer.training.tensors import FlatModule, make_batch, prepare_samples, resolve_loss

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Kind:
    """Shape of one sample's part and its type in the file: float32 or int32."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class TracedModel:
    """What the file does. `train` gives the losses and a gradient (or None) for every tensor of the layout, `losses`
    the losses and outputs in evaluation mode. All take the weights first, then features and, except `infer`,
    labels."""

    layout: Layout
    features: Kind
    labels: Kind
    train: Traced
    losses: Traced
    infer: Traced

    @property
    def looks_at_batches(self) -> bool:
        """Whether what the model says of a sample depends on the others of its batch."""
        return any("batch_norm" in step.kind for step in self.infer.steps)


def traced_model(make: Callable[[], Any], loss: str | Callable[[Any, Any], Any], samples: Samples) -> TracedModel:
    """The model that `make` makes, for samples like these (at least one)."""
    import torch

    flat = FlatModule(make)
    module, values = flat.module, resolve_loss(loss)
    _check_only_parameters(module, flat.layout)
    names = [name for name, _ in flat.layout]
    features, labels = prepare_samples(samples)

    def inputs(size: int, count: int) -> tuple[Any, ...]:
        rows = np.arange(size) % len(labels)
        parameters = [each.detach().clone().requires_grad_(each.requires_grad) for each in module.parameters()]
        return (*parameters, *(make_batch(part, rows) for part in (features, labels)[:count]))

    def outputs(given: tuple[Any, ...]) -> torch.Tensor:
        weights = dict(zip(names, given[: len(names)], strict=True))
        made: torch.Tensor = torch.func.functional_call(module, weights, (given[len(names)],))
        return made

    def train(*given: Any) -> tuple[Any, ...]:
        losses = values(outputs(given), given[-1])
        if not losses.requires_grad:
            raise BadData("the model's output hangs on its weights by nothing that has a gradient: it cannot learn")
        moved = [each for each in given[: len(names)] if each.requires_grad]
        gradients = iter(torch.autograd.grad(losses.mean(), moved, allow_unused=True))
        return losses.detach(), *(next(gradients) if each.requires_grad else None for each in given[: len(names)])

    module.train()
    step = traced(train, lambda size: inputs(size, 2), module)
    module.eval()

    def look(*given: Any) -> tuple[Any, ...]:
        made = outputs(given)
        return values(made, given[-1]), made

    with torch.no_grad():
        looked = traced(look, lambda size: inputs(size, 2), module)
        seen = traced(lambda *given: (outputs(given),), lambda size: inputs(size, 1), module)
    return TracedModel(flat.layout, _kind(features), _kind(labels), step, looked, seen)


def _kind(part: Any) -> Kind:
    return Kind(tuple(part.shape[1:]), "int32" if part.dtype == np.int64 else "float32")


def _check_only_parameters(module: Any, layout: Layout) -> None:
    """Buffers that training changes would stay on the device."""
    parameters = {name for name, _ in module.named_parameters()}
    for name, _ in layout:
        if name not in parameters:
            layer = name.rpartition(".")[0]
            kind = type(module.get_submodule(layer)).__name__
            raise BadData(
                f"layer {layer} ({kind}) keeps {name!r}, which training changes beside the weights; a file has no "
                "place for that: use track_running_stats=False or a group norm"
            )
