"""torch's operations in terms of those with an ExecuTorch kernel, gradients included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import reduce
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.export import layers
from fedbalancer.export.layers import Unsupported
from fedbalancer.export.replay import Replay
from fedbalancer.export.trace import PerBatch, Step

if TYPE_CHECKING:
    import torch


class TorchVerbs:
    """torch under TensorFlow's names, so that each layer is written once for both.

    It uses only operations whose ExecuTorch kernel is correct for every batch size.
    """

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self.int32 = torch.int32
        self.sqrt, self.square, self.transpose, self.reshape = torch.sqrt, _square, torch.permute, torch.reshape
        self.math = SimpleNamespace(rsqrt=torch.rsqrt)

    def constant(self, value: Any) -> torch.Tensor:
        return self._torch.from_numpy(np.array(value, order="C"))

    def ones(self, shape: Sequence[int]) -> torch.Tensor:
        return self._torch.ones(tuple(shape))

    def equal(self, a: torch.Tensor, b: NDArray[Any]) -> torch.Tensor:
        return a == self.constant(b.astype(np.int64))

    def where(self, chosen: torch.Tensor, a: torch.Tensor, b: float) -> torch.Tensor:
        return self._torch.where(chosen, a, self._torch.zeros(()) + b)

    def minimum(self, a: float, b: torch.Tensor) -> torch.Tensor:
        return self._torch.clamp(b, max=a)

    def add_n(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return reduce(lambda a, b: a + b, parts)

    def matmul(
        self, a: torch.Tensor, b: torch.Tensor, transpose_a: bool = False, transpose_b: bool = False
    ) -> torch.Tensor:
        return (a.t() if transpose_a else a) @ (b.t() if transpose_b else b)

    def pad(self, x: torch.Tensor, pads: Sequence[Sequence[int]], constant_values: float = 0.0) -> torch.Tensor:
        last_first = [each for pair in reversed(list(pads)) for each in pair]
        return self._torch.constant_pad_nd(x, last_first, constant_values) if any(last_first) else x

    def gather(self, x: torch.Tensor, places: Any, axis: int = 0) -> torch.Tensor:
        flat = self._torch.index_select(x, axis, self.constant(np.ravel(places)))
        shape = [*x.shape[:axis], *np.shape(places), *x.shape[axis + 1 :]]
        return flat if np.ndim(places) == 1 else flat.reshape(shape)

    def one_hot(self, rows: torch.Tensor, count: int, dtype: Any = None) -> torch.Tensor:
        return (rows[..., None] == self._torch.arange(count)).to(dtype)

    def reduce_sum(self, x: torch.Tensor, axis: Any = None) -> torch.Tensor:
        return x.sum() if axis is None else x.sum(dim=axis)

    def reduce_mean(self, x: torch.Tensor, axis: Sequence[int], keepdims: bool = False) -> torch.Tensor:
        """Average one axis at a time, because ExecuTorch's sum of tens of thousands of numbers is inaccurate."""
        for dim in sorted(axis, reverse=True):
            x = x.mean(dim=dim, keepdim=keepdims)
        return x

    def reduce_max(self, x: torch.Tensor, axis: int) -> torch.Tensor:
        return x.amax(dim=axis)

    def argmax(self, x: torch.Tensor, axis: int, output_type: Any = None) -> torch.Tensor:
        return x.argmax(dim=axis)


def _square(x: torch.Tensor) -> torch.Tensor:
    return x * x


LAYER = "layer"
"""Key of the layer's name in the metadata of a graph node."""


class TorchReplay(Replay):
    """Runs the steps of a traced function on torch tensors, so that torch.export can record them."""

    supported = "in torch's operations"

    def __init__(self) -> None:
        super().__init__(TorchVerbs())

    def operation(self, kind: str) -> Callable[..., Any] | None:
        if kind in OPERATIONS:
            return OPERATIONS[kind]
        operation = _find_operation(kind)
        return (
            None
            if operation is None
            else lambda t, *args, **options: operation(*_resolve(t, args), **_options(t, options))
        )

    def constant(self, value: Any) -> Any:
        return self.tf.constant(np.asarray(value))

    def mark_layer(self, step: Step) -> AbstractContextManager[Any]:
        from torch.fx.traceback import annotate

        return annotate({LAYER: step.place})

    def number(self, value: PerBatch) -> Any:
        """Return a batch-dependent number as a tensor, because kernels take no other."""
        import torch

        samples = torch.ones((self._batch,)).sum()
        return value.times / samples if value.divided else value.times * samples

    def size(self, value: PerBatch) -> Any:
        """Return a batch-dependent number as part of a shape."""
        if value.divided or value.times != round(value.times):
            raise Unsupported("has a shape that is not a multiple of the batch size")
        return self._batch * round(value.times)


def _find_operation(kind: str) -> Any:
    """Return the torch operation of this name; for an in-place one, its out-of-place counterpart."""
    import torch

    operation: Any = torch.ops
    *spaces, name, overload = kind.split(".")
    for part in (*spaces, name.removesuffix("_"), overload):
        operation = getattr(operation, part, None)
    # A batch-dependent number is a tensor here, so torch must choose the overload.
    return getattr(operation, "overloadpacket", None) if overload == "Scalar" else operation


def _resolve(t: TorchReplay, args: Sequence[Any]) -> list[Any]:
    """Replace batch-dependent numbers in arguments."""

    def resolve(arg: Any) -> Any:
        if isinstance(arg, tuple):
            return [t.size(each) if isinstance(each, PerBatch) else resolve(each) for each in arg]
        return t.number(arg) if isinstance(arg, PerBatch) else arg

    return [resolve(arg) for arg in args]


def _options(t: TorchReplay, options: dict[str, Any]) -> dict[str, Any]:
    """Replace names of types, and drop device and memory options."""
    import torch

    kept = {key: value for key, value in options.items() if key not in ("device", "layout", "pin_memory")}
    kept.pop("memory_format", None)
    if isinstance(kept.get("dtype"), str):
        kept["dtype"] = getattr(torch, kept["dtype"].removeprefix("torch."))
    return dict(zip(kept, _resolve(t, list(kept.values())), strict=True))


def _same(t: TorchReplay, x: Any, *_: Any, **__: Any) -> Any:
    return x


def _item(t: TorchReplay, parts: Any, place: int) -> Any:
    return parts[place]


def _view(t: TorchReplay, x: Any, dims: Sequence[Any]) -> Any:
    """Reshape for any memory order: rewritten layers may have another than torch's."""
    return x.reshape(_resolve(t, [tuple(dims)])[0])


def _scalar(t: TorchReplay, value: Any, **options: Any) -> Any:
    import torch

    kind = _options(t, options).get("dtype", torch.float32)
    return t.number(value).to(kind) if isinstance(value, PerBatch) else torch.full((), value, dtype=kind)


def _to(t: TorchReplay, x: Any, **options: Any) -> Any:
    return x.to(_options(t, options).get("dtype", x.dtype))


def _addmm(t: TorchReplay, bias: Any, a: Any, b: Any) -> Any:
    """Multiply and add separately: ExecuTorch's fused kernel takes ten times as long."""
    return t.tf.matmul(a, b) + bias


OPERATIONS: dict[str, Callable[..., Any]] = {
    "getitem": _item,
    **{f"aten.{name}.default": _same for name in ("alias", "clone", "detach", "contiguous", "lift_fresh_copy")},
    **{f"aten.{name}.default": _view for name in ("view", "_unsafe_view", "reshape")},
    "aten.scalar_tensor.default": _scalar,
    "aten._to_copy.default": _to,
    "aten.addmm.default": _addmm,
    **layers.LAYERS,
}
"""Operations not done by torch's operation of the same name, called as f(replay, *args, **options)."""
