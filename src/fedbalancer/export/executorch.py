"""Writes one file that ExecuTorch can train, with the methods `train`, `losses`, `infer` and `about`.

Weights are inputs and outputs of every call: the file has no state. ExecuTorch's own joint graph of loss and gradients
is not used, because its gradient of a pooling is wrong. The step is an ordinary function of tensors instead, made of
operations with an ExecuTorch kernel.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import reduce
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData
from fedbalancer.export import layers
from fedbalancer.export.layers import Replay, Unsupported, sgd_step
from fedbalancer.export.trace import BATCHES, PerBatch, SampleSpec, Step, TracedModel
from fedbalancer.training.executorch import load_runtime, silence

if TYPE_CHECKING:
    import torch


NUMBERS = ("learning_rate", "mu", "clip_norm")


def load_exir() -> Any:
    """Import ExecuTorch's exporter, or raise `MissingData` with the install command."""
    load_runtime()
    from executorch import exir

    return exir


def to_executorch(model: TracedModel, about: Mapping[str, Any]) -> bytes:
    """Convert a traced model to the bytes of its file.

    Args:
        model: The traced model.
        about: Description of the model, stored in the file.

    Returns:
        The content of the file.

    Raises:
        BadData: ExecuTorch cannot write or run the model.
    """
    exir = load_exir()
    # Its type check silently fixes the batch size; kernels and results are checked here instead.
    unchecked = exir.EdgeCompileConfig(_check_ir_validity=False)
    try:
        with silence():
            programs = _programs(_Steps(model), about)
            edge = exir.to_edge(programs, constant_methods={"about": json.dumps(about)}, compile_config=unchecked)
            for name in programs:
                _check_kernels(edge.exported_program(name))
            return bytes(edge.to_executorch().buffer)
    except BadData:
        raise
    except Exception as error:  # its passes raise arbitrary exceptions
        raise BadData(f"ExecuTorch cannot write the model: {' '.join(str(error).split())[:300]}") from error


def _programs(steps: _Steps, about: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "train": _export_method(steps.train, steps.inputs(2, 2, NUMBERS), about["train_batch"]),
        "losses": _export_method(steps.losses, steps.inputs(1, 2), about["forward_batch"]),
        "infer": _export_method(steps.infer, steps.inputs(1, 1), about["forward_batch"]),
    }


class _Steps:
    """The file's methods as functions of torch tensors. Weights come first; `train` takes current and initial ones."""

    def __init__(self, model: TracedModel) -> None:
        self._model, self._run, self._count = model, TorchReplay().run, len(model.layout)

    def inputs(self, times: int, parts: int, numbers: Sequence[str] = ()) -> tuple[list[Any], list[Any], list[Any]]:
        """Return example weights, batch parts and scalars."""
        import torch

        weights = [torch.zeros(shape) for _, shape in self._model.layout] * times
        batch = [_example(kind) for kind in (self._model.features, self._model.labels)[:parts]]
        return [each.clone() for each in weights], batch, [torch.ones(()) for _ in numbers]

    def train(self, *args: Any) -> tuple[Any, ...]:
        """Take one SGD step. Returns the losses before it and the weights after it."""
        now, start, rest = args[: self._count], args[self._count : 2 * self._count], args[2 * self._count :]
        x, y, rate, mu, clip_norm = rest
        losses, *gradients = self._run(self._model.train, [*now, x, y], x.shape[0])
        moved = sgd_step(TorchVerbs(), now, start, gradients, rate, mu, clip_norm)
        return losses, *(moved.get(n, each * 1.0) for n, each in enumerate(now))

    def losses(self, *args: Any) -> tuple[Any, ...]:
        return tuple(self._run(self._model.losses, args, args[-1].shape[0]))

    def infer(self, *args: Any) -> tuple[Any, ...]:
        return tuple(self._run(self._model.infer, args, args[-1].shape[0]))


def _example(kind: SampleSpec) -> torch.Tensor:
    import torch

    return torch.zeros((BATCHES[0], *kind.shape), dtype=torch.float32 if kind.dtype == "float32" else torch.int64)


def _export_method(function: Any, inputs: tuple[list[Any], list[Any], list[Any]], largest: int) -> Any:
    """Export a function with torch for batches of up to `largest` samples, for which ExecuTorch plans its memory."""
    import torch
    from torch.fx.traceback import preserve_node_meta

    class Method(torch.nn.Module):
        def forward(self, *args: Any) -> Any:
            return function(*args)

    weights, batch, numbers = inputs
    some = {0: torch.export.Dim("batch", min=1, max=largest)}
    shapes = ((*(None for _ in weights), *(some for _ in batch), *(None for _ in numbers)),)
    with preserve_node_meta():  # keeps the layer of every operation
        return torch.export.export(Method(), (*weights, *batch, *numbers), dynamic_shapes=shapes, strict=False)


def _check_kernels(program: Any) -> None:
    """Refuse operations that ExecuTorch can write but not run, with the layer."""
    names = load_runtime().operator_registry.operator_names
    known = {name.partition("::")[2].partition(".")[0] for name in names}
    for node in program.graph.nodes:
        name = node.target.__name__ if node.op == "call_function" else ""
        kind = name.split(".")[1] if name.startswith("aten.") else ""
        if kind and not {kind, f"{kind}_copy"} & known:
            place = node.meta.get("custom", {}).get(LAYER, "the step")
            raise BadData(f"{place}: the operation {name} has no kernel in ExecuTorch")


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
