"""One file for ExecuTorch that trains: methods `train`, `losses`, `infer` and `about`.

The weights go in and come out with every call: the file keeps nothing. ExecuTorch's own way to train, a graph of loss
and gradients, is not used: its gradient of a pooling is wrong. Here the step is an ordinary function of tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedbalancer.core.errors import BadData
from fedbalancer.export.model import Kind, TracedModel
from fedbalancer.export.replay import sgd_step
from fedbalancer.export.torch_operators import LAYER, TorchReplay
from fedbalancer.export.torch_verbs import TorchVerbs
from fedbalancer.export.trace import BATCHES
from fedbalancer.training.executorch import load_runtime, silence

if TYPE_CHECKING:
    import torch

NUMBERS = ("learning_rate", "mu", "clip_norm")


def executorch() -> Any:
    """ExecuTorch, which writes the file and reads it, or how to get it."""
    load_runtime()
    from executorch import exir

    return exir


def to_executorch(model: TracedModel, about: Mapping[str, Any]) -> bytes:
    """The file of a traced model; `about` is what it tells of itself."""
    exir = executorch()
    # Its check of types fixes the size of the batch, silently; kernels and results are checked here.
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
    except Exception as error:  # its passes raise whatever their parts do
        raise BadData(f"ExecuTorch cannot write the model: {' '.join(str(error).split())[:300]}") from error


def _programs(steps: _Steps, about: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "train": _written(steps.train, steps.inputs(2, 2, NUMBERS), about["train_batch"]),
        "losses": _written(steps.losses, steps.inputs(1, 2), about["forward_batch"]),
        "infer": _written(steps.infer, steps.inputs(1, 1), about["forward_batch"]),
    }


class _Steps:
    """The methods as functions of torch's tensors: the weights come first, of `train` twice (now, and where mu pulls
    to)."""

    def __init__(self, model: TracedModel) -> None:
        self._model, self._run, self._count = model, TorchReplay().run, len(model.layout)

    def inputs(self, times: int, parts: int, numbers: Sequence[str] = ()) -> tuple[list[Any], list[Any], list[Any]]:
        """Examples of weights, of a batch and of numbers."""
        import torch

        weights = [torch.zeros(shape) for _, shape in self._model.layout] * times
        batch = [_example(kind) for kind in (self._model.features, self._model.labels)[:parts]]
        return [each.clone() for each in weights], batch, [torch.ones(()) for _ in numbers]

    def train(self, *given: Any) -> tuple[Any, ...]:
        """One step of SGD: the losses from before it, and the weights after it."""
        now, start, rest = given[: self._count], given[self._count : 2 * self._count], given[2 * self._count :]
        x, y, rate, mu, clip_norm = rest
        losses, *gradients = self._run(self._model.train, [*now, x, y], x.shape[0])
        moved = sgd_step(TorchVerbs(), now, start, gradients, rate, mu, clip_norm)
        return losses, *(moved.get(n, each * 1.0) for n, each in enumerate(now))

    def losses(self, *given: Any) -> tuple[Any, ...]:
        return tuple(self._run(self._model.losses, given, given[-1].shape[0]))

    def infer(self, *given: Any) -> tuple[Any, ...]:
        return tuple(self._run(self._model.infer, given, given[-1].shape[0]))


def _example(kind: Kind) -> torch.Tensor:
    import torch

    return torch.zeros((BATCHES[0], *kind.shape), dtype=torch.float32 if kind.dtype == "float32" else torch.int64)


def _written(function: Any, inputs: tuple[list[Any], list[Any], list[Any]], largest: int) -> Any:
    """torch's program of a function, for batches of up to so many samples: ExecuTorch plans its memory for them."""
    import torch
    from torch.fx.traceback import preserve_node_meta

    class Method(torch.nn.Module):
        def forward(self, *given: Any) -> Any:
            return function(*given)

    weights, batch, numbers = inputs
    some = {0: torch.export.Dim("batch", min=1, max=largest)}
    shapes = ((*(None for _ in weights), *(some for _ in batch), *(None for _ in numbers)),)
    with preserve_node_meta():  # of which layer every operation is
        return torch.export.export(Method(), (*weights, *batch, *numbers), dynamic_shapes=shapes, strict=False)


def _check_kernels(program: Any) -> None:
    """Refuse what ExecuTorch could write and not run, with the layer."""
    names = load_runtime().operator_registry.operator_names
    known = {name.partition("::")[2].partition(".")[0] for name in names}
    for node in program.graph.nodes:
        name = node.target.__name__ if node.op == "call_function" else ""
        kind = name.split(".")[1] if name.startswith("aten.") else ""
        if kind and not {kind, f"{kind}_copy"} & known:
            place = node.meta.get("custom", {}).get(LAYER, "the step")
            raise BadData(f"{place}: the operation {name} has no kernel in ExecuTorch")
