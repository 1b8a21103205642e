"""One flat vector for all the weights of a `torch.nn.Module`, and back.

The vector holds the named parameters, then the floating-point buffers that the module saves (the running statistics of
a batch norm: an averaged model evaluates well only if they are averaged too). The module's tensors are views of it, so
that a reset is one copy. Other buffers, such as integer counters, are put back to what the factory made at every load,
so that a load leaves no trace of what was trained before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbalancer.core.errors import BadData, FedBalancerError
from fedbalancer.core.types import Layout, Weights

if TYPE_CHECKING:
    import torch


class FlatModule:
    """A module whose weights are read and written as one float32 vector."""

    def __init__(self, make: Callable[[], Any], device: str = "cpu") -> None:
        import torch

        self.make = make
        self.module = build(make).to(device)
        saved = self.module.state_dict().keys()
        tensors: dict[str, torch.Tensor] = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        parameters = {name for name, _ in self.module.named_parameters()}
        kept = {
            name: tensor
            for name, tensor in tensors.items()
            if tensor.is_floating_point() and (name in parameters or name in saved)
        }
        self.parameters = [tensor for tensor in self.module.parameters() if tensor.requires_grad]
        self.layout = Layout((name, tuple(tensor.shape)) for name, tensor in kept.items())
        self._vector = torch.empty(self.layout.parameters, device=device)
        self.spans = {id(kept[name]): span for name, span in self.layout.spans.items()}
        """Where a tensor of the module lies in the vector."""
        for tensor in kept.values():
            view = self._vector[self.spans[id(tensor)]].view(tensor.shape)
            view.copy_(tensor.detach())
            tensor.data = view
        self._others = [(tensor, tensor.detach().clone()) for name, tensor in tensors.items() if name not in kept]

    def initial(self, seed: int) -> Weights:
        """What the factory makes under this seed; the generators of the program are left as they were."""
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return FlatModule(self.make).read()

    def load(self, weights: Weights) -> None:
        """Write the vector into the module."""
        import torch

        if weights.shape != tuple(self._vector.shape):
            raise ValueError(f"expected a vector of {len(self._vector)} weights, got shape {weights.shape}")
        if self._vector.device.type == "cpu":
            self._vector.numpy()[:] = weights
        else:
            self._vector.copy_(torch.tensor(weights))
        for tensor, original in self._others:
            tensor.data.copy_(original)

    def read(self) -> Weights:
        """A copy of the module's weights."""
        vector: Weights = self._vector.cpu().numpy().copy()
        return vector

    def update(self, weights: Weights) -> Weights:
        """The module's weights minus these."""
        update: Weights = np.empty_like(weights)
        self.update_into(update, weights, [slice(None)])
        return update

    def update_into(self, update: Weights, weights: Weights, spans: Iterable[slice]) -> None:
        """The same for parts of the vector."""
        vector = self._vector.cpu().numpy()
        for span in spans:
            np.subtract(vector[span], weights[span], out=update[span])


def _made(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except FedBalancerError:
        raise
    except Exception as error:  # the user's code: anything
        name = getattr(make, "__qualname__", repr(make))
        raise BadData(f"the task's model {name}() raised {type(error).__name__}: {error}") from error


def build(make: Callable[[], Any]) -> torch.nn.Module:
    """A fresh module from the user's factory, in float32 on the CPU."""
    import torch

    with torch.random.fork_rng(devices=[]):  # the user's own draws go on as if no model had been made
        module = _made(make)
    if not isinstance(module, torch.nn.Module):
        raise BadData(f"the task's model must make a torch.nn.Module, not {type(module).__name__}")
    return module.float().cpu()
