"""One flat vector for all the weights of a `torch.nn.Module`, and back.

The vector holds the named parameters, then the floating-point buffers that the module saves (the running statistics of
a batch norm: an averaged model evaluates well only if they are averaged too). Other buffers, such as integer counters,
are put back to what the factory made at every load, so that a load leaves no trace of what was trained before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedbalancer.errors import BadData
from fedbalancer.types import Layout, Weights

if TYPE_CHECKING:
    import torch


class FlatModule:
    """A module whose weights are read and written as one float32 vector."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.module = build(make)
        saved = self.module.state_dict().keys()
        buffers = dict(self.module.named_buffers())
        kept = {name: buffer for name, buffer in buffers.items() if name in saved and buffer.is_floating_point()}
        named: dict[str, torch.Tensor] = {**dict(self.module.named_parameters()), **kept}
        self.parameters = [tensor for tensor in self.module.parameters() if tensor.requires_grad]
        self.layout: Layout = tuple((name, tuple(tensor.shape)) for name, tensor in named.items())
        self._tensors = [tensor.detach() for tensor in named.values()]
        self._sizes = [tensor.numel() for tensor in self._tensors]
        self._others = [(buffer, buffer.clone()) for name, buffer in buffers.items() if name not in kept]

    def initial(self, seed: int) -> Weights:
        """What the factory makes under this seed; the generators of the program are left as they were."""
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return FlatModule(self.make).read()

    def load(self, weights: Weights) -> None:
        """Write the vector into the module."""
        import torch

        if weights.shape != (sum(self._sizes),):
            raise ValueError(f"expected a vector of {sum(self._sizes)} weights, got shape {weights.shape}")
        # Copied tensor by tensor, not viewed: every tensor keeps its own aligned memory, on which kernels may depend.
        for tensor, part in zip(self._tensors, torch.split(torch.tensor(weights), self._sizes), strict=True):
            tensor.copy_(part.view_as(tensor))
        for buffer, original in self._others:
            buffer.copy_(original)

    def read(self) -> Weights:
        """A copy of the module's weights."""
        import torch

        if not self._tensors:
            return torch.empty(0).numpy()
        vector: Weights = torch.cat([tensor.reshape(-1) for tensor in self._tensors]).numpy()
        return vector


def build(make: Callable[[], Any]) -> torch.nn.Module:
    """A fresh module from the user's factory, in float32 on the CPU."""
    import torch

    with torch.random.fork_rng(devices=[]):  # the user's own draws go on as if no model had been made
        module = make()
    if not isinstance(module, torch.nn.Module):
        raise BadData(f"the task's model must make a torch.nn.Module, not {type(module).__name__}")
    return module.float().cpu()
