"""Writes one file that ExecuTorch can train, with the methods `train`, `losses`, `infer` and `about`.

Weights are inputs and outputs of every call: the file has no state. ExecuTorch's own joint graph of loss and gradients
is not used, because its gradient of a pooling is wrong. The step is an ordinary function of tensors instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedbalancer.core.errors import BadData
from fedbalancer.export.replay import sgd_step
from fedbalancer.export.torch_operators import LAYER, TorchReplay, TorchVerbs
from fedbalancer.export.trace import BATCHES, SampleSpec, TracedModel
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
