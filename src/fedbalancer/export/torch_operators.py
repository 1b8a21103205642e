"""torch's operations by those for which ExecuTorch has kernels, gradients included: mostly they are the same ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from fedbalancer.export import cuts, layers
from fedbalancer.export.layers import Refused
from fedbalancer.export.replay import Replay
from fedbalancer.export.torch_verbs import TorchVerbs
from fedbalancer.export.trace import PerBatch, Step

LAYER = "layer"
"""By which name a node of torch's graph keeps where it is from."""


class TorchReplay(Replay):
    """Runs the steps of a traced function on torch's own tensors, so that torch.export can write them down again."""

    whose = "among torch's operations"

    def __init__(self) -> None:
        super().__init__(TorchVerbs())

    def operation(self, kind: str) -> Callable[..., Any] | None:
        if kind in OPERATIONS:
            return OPERATIONS[kind]
        found = _of_torch(kind)
        return None if found is None else lambda t, *args, **options: found(*_plain(t, args), **_options(t, options))

    def constant(self, value: Any) -> Any:
        return self.tf.constant(np.asarray(value))

    def marked(self, step: Step) -> AbstractContextManager[Any]:
        from torch.fx.traceback import annotate

        return annotate({LAYER: step.place})

    def number(self, value: PerBatch) -> Any:
        """A number that depends on the batch, as a tensor: kernels take no other."""
        import torch

        samples = torch.ones((self._batch,)).sum()
        return value.times / samples if value.divided else value.times * samples

    def size(self, value: PerBatch) -> Any:
        """A number that depends on the batch, in a shape."""
        if value.divided or value.times != round(value.times):
            raise Refused("has a shape that is no multiple of the batch")
        return self._batch * round(value.times)


def _of_torch(kind: str) -> Any:
    """The operation that torch calls so; one that writes over its input, as the one that does not."""
    import torch

    found: Any = torch.ops
    *spaces, name, overload = kind.split(".")
    for part in (*spaces, name.removesuffix("_"), overload):
        found = getattr(found, part, None)
    # A number that depends on the batch is a tensor here: then torch chooses by what it is given.
    return getattr(found, "overloadpacket", None) if overload == "Scalar" else found


def _plain(t: TorchReplay, args: Sequence[Any]) -> list[Any]:
    def plain(arg: Any) -> Any:
        if isinstance(arg, tuple):
            return [t.size(each) if isinstance(each, PerBatch) else plain(each) for each in arg]
        return t.number(arg) if isinstance(arg, PerBatch) else arg

    return [plain(arg) for arg in args]


def _options(t: TorchReplay, options: dict[str, Any]) -> dict[str, Any]:
    """Types by their names; where a tensor lies and how is not asked."""
    import torch

    found = {key: value for key, value in options.items() if key not in ("device", "layout", "pin_memory")}
    found.pop("memory_format", None)
    if isinstance(found.get("dtype"), str):
        found["dtype"] = getattr(torch, found["dtype"].removeprefix("torch."))
    return dict(zip(found, _plain(t, list(found.values())), strict=True))


def _same(t: TorchReplay, x: Any, *_: Any, **__: Any) -> Any:
    return x


def _item(t: TorchReplay, parts: Any, place: int) -> Any:
    return parts[place]


def _view(t: TorchReplay, x: Any, dims: Sequence[Any]) -> Any:
    """Whatever the order in memory is: layers written otherwise than torch's have another."""
    return x.reshape(_plain(t, [tuple(dims)])[0])


def _scalar(t: TorchReplay, value: Any, **options: Any) -> Any:
    import torch

    kind = _options(t, options).get("dtype", torch.float32)
    return t.number(value).to(kind) if isinstance(value, PerBatch) else torch.full((), value, dtype=kind)


def _to(t: TorchReplay, x: Any, **options: Any) -> Any:
    return x.to(_options(t, options).get("dtype", x.dtype))


def _addmm(t: TorchReplay, bias: Any, a: Any, b: Any) -> Any:
    """ExecuTorch's kernel for both at once takes ten times as long."""
    return t.tf.matmul(a, b) + bias


OPERATIONS: dict[str, Callable[..., Any]] = {
    "getitem": _item,
    **{f"aten.{name}.default": _same for name in ("alias", "clone", "detach", "contiguous", "lift_fresh_copy")},
    **{f"aten.{name}.default": _view for name in ("view", "_unsafe_view", "reshape")},
    "aten.scalar_tensor.default": _scalar,
    "aten._to_copy.default": _to,
    "aten.addmm.default": _addmm,
    "aten.slice.Tensor": cuts.cut,
    "aten.constant_pad_nd.default": cuts.pad,
    "aten.unfold.default": layers.unfold,
    "aten.convolution.default": layers.convolution,
    "aten.convolution_backward.default": layers.convolution_backward,
    "aten.max_pool2d_with_indices.default": layers.max_pool,
    "aten.max_pool2d_with_indices_backward.default": layers.max_pool_backward,
    "aten.avg_pool2d.default": layers.average_pool,
    "aten.avg_pool2d_backward.default": layers.average_pool_backward,
    "aten.native_batch_norm.default": layers.batch_norm,
    "aten.embedding_dense_backward.default": layers.embedding_backward,
}
"""What is not done by torch's operation of the same name: (replay, what the operation is given) -> its result."""
