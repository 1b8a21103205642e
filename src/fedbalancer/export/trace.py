"""Records the training step of a torch model as a list of plain operations, gradients included.

torch records its operations for two batch sizes. A number that differs between the two depends on the batch size, all
else is constant. No gradients are written by hand, and models need no special form.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbalancer.core.errors import BadData
from fedbalancer.core.task import Samples
from fedbalancer.core.types import Layout
from fedbalancer.training.tensors import FlatModule, make_batch, prepare_samples, resolve_loss

if TYPE_CHECKING:
    import torch

BATCHES = (7, 11)
"""The two batch sizes. A layer dimension that equals one of them does not equal the other."""


@dataclass(frozen=True)
class Ref:
    """The result of an earlier step.

    Args:
        name: Name of that step.
    """

    name: str


@dataclass(frozen=True)
class PerBatch:
    """A number that depends on the batch size.

    Args:
        times: Factor of the batch size.
        divided: Whether the number is `times` divided by the batch size instead.
    """

    times: float
    divided: bool = False


@dataclass(frozen=True)
class Step:
    """One operation.

    Args:
        name: Name of its result.
        kind: torch's name of the operation, `input` or `constant`.
        args: Positional arguments.
        options: Keyword arguments.
        layer: Name of the layer.
    """

    name: str
    kind: str
    args: tuple[Any, ...]
    options: dict[str, Any]
    layer: str

    @property
    def place(self) -> str:
        """The step's place in the model, for messages."""
        return f"layer {self.layer}" if self.layer else "the loss, or between two layers"


@dataclass(frozen=True)
class TracedFunction:
    """A function as a list of steps. Inputs come first, in the order of the function's arguments.

    Args:
        steps: The operations.
        outputs: Results that the function returns.
    """

    steps: tuple[Step, ...]
    outputs: tuple[Ref | None, ...]


def trace(
    function: Callable[..., Any], example: Callable[[int], tuple[Any, ...]], module: torch.nn.Module
) -> TracedFunction:
    """Trace a function for every batch size.

    Args:
        function: The function.
        example: Returns the arguments for a batch size.
        module: The module whose layers are named.

    Returns:
        The steps.

    Raises:
        BadData: The operations depend on the batch size in a way that a file cannot express.
    """
    one, other = (_trace_once(function, example(size), module) for size in BATCHES)
    if [(step.name, step.kind) for step in one.steps] != [(step.name, step.kind) for step in other.steps]:
        raise BadData(f"the model runs other operations for {BATCHES[0]} samples than for {BATCHES[1]}")
    return TracedFunction(tuple(_merge_steps(a, b) for a, b in zip(one.steps, other.steps, strict=True)), one.outputs)


def _trace_once(function: Callable[..., Any], inputs: tuple[Any, ...], module: torch.nn.Module) -> TracedFunction:
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    layers: dict[Any, str] = {}
    # Without oneDNN, a recurrent layer is recorded as products and gates.
    with warnings.catch_warnings(), _named_layers(module, layers):
        warnings.simplefilter("ignore", UserWarning)  # about unused GPUs
        with torch.backends.mkldnn.flags(enabled=False):
            graph = make_fx(function, decomposition_table=_decompositions())(*inputs)
    graph.graph.eliminate_dead_code()
    steps, outputs = [], ()
    inputs_of = (node for node in graph.graph.nodes if node.op == "placeholder")
    layers.update(zip(inputs_of, _parameter_layers(module), strict=False))  # parameters come first
    for node in graph.graph.nodes:
        if node.op == "output":
            outputs = _plain(node.args[0])
            continue
        layer = layers.get(node) or next((layers[n] for n in reversed(node.all_input_nodes) if layers.get(n)), "")
        layers[node] = layer
        kind = {"placeholder": "input", "get_attr": "constant"}.get(node.op) or _operation_name(node.target)
        args = (getattr(graph, node.target).detach().numpy(),) if kind == "constant" else _plain(node.args)
        steps.append(Step(node.name, kind, args, {k: _plain(v) for k, v in node.kwargs.items()}, layer))
    return TracedFunction(tuple(steps), tuple(outputs))


def _operation_name(target: Any) -> str:
    name = str(target)
    return "getitem" if "getitem" in name else name


def _decompositions() -> dict[Any, Any]:
    """Return torch's decompositions into core operations, except those with a shorter counterpart."""
    import torch
    from torch._decomp import core_aten_decompositions

    kept = {torch.ops.aten.embedding_dense_backward.default}
    table: dict[Any, Any] = dict(core_aten_decompositions())
    return {name: rule for name, rule in table.items() if name not in kept}


@contextmanager
def _named_layers(module: torch.nn.Module, layers: dict[Any, str]) -> Iterator[None]:
    """Record which operations each layer creates while a function is traced."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    def nodes() -> list[Any]:
        mode = get_proxy_mode()
        return list(mode.tracer.graph.nodes) if mode is not None else []

    def begin(layer: torch.nn.Module, inputs: Any) -> None:
        starts.append(len(nodes()))

    def end(layer: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        layers.update({node: names[layer] for node in nodes()[starts.pop() :] if node not in layers})

    starts: list[int] = []
    names = {layer: layer_name(name, layer) for name, layer in module.named_modules() if not list(layer.children())}
    hooks = [
        hook for leaf in names for hook in (leaf.register_forward_pre_hook(begin), leaf.register_forward_hook(end))
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _parameter_layers(module: torch.nn.Module) -> list[str]:
    """Return the layer of every trained parameter."""
    names = [name.rpartition(".")[0] for name, each in module.named_parameters() if each.requires_grad]
    return [layer_name(name, module.get_submodule(name)) for name in names]


def layer_name(name: str, layer: torch.nn.Module) -> str:
    """Return a layer's name for messages, such as `blocks.2 (MaxPool2d)`."""
    return f"{name or 'the model'} ({type(layer).__name__})"


def _plain(value: Any) -> Any:
    """Replace torch's objects in arguments: results and types by their names."""
    import torch

    if isinstance(value, torch.fx.Node):
        return Ref(value.name)
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    if isinstance(value, torch.dtype | torch.layout | torch.device | torch.memory_format):
        return str(value)
    return value


def _merge_steps(one: Step, other: Step) -> Step:
    try:
        args = _merge_values(one.args, other.args)
        options = {key: _merge_values(value, other.options[key]) for key, value in one.options.items()}
    except ValueError as error:
        raise BadData(f"{one.place}: {error}; a model file must work for every batch size") from error
    return Step(one.name, one.kind, args, options, one.layer)


def _merge_values(a: Any, b: Any) -> Any:
    """Return a value that both traces share, or how it depends on the batch size."""
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return tuple(_merge_values(*pair) for pair in zip(a, b, strict=True))
    if hasattr(a, "dtype") and hasattr(b, "dtype") and a.shape == b.shape and (a == b).all():
        return a
    if hasattr(a, "dtype") or hasattr(b, "dtype"):
        raise ValueError("it creates a constant that depends on the batch")
    if a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)):
        return a
    numbers = isinstance(a, int | float) and isinstance(b, int | float)
    if numbers and math.isclose(a / BATCHES[0], b / BATCHES[1], rel_tol=1e-12):
        return PerBatch(a / BATCHES[0])
    if numbers and math.isclose(a * BATCHES[0], b * BATCHES[1], rel_tol=1e-12):
        return PerBatch(a * BATCHES[0], divided=True)
    raise ValueError(f"it uses {a} for {BATCHES[0]} samples and {b} for {BATCHES[1]}")


@dataclass(frozen=True)
class SampleSpec:
    """Shape and type of one sample's features or labels in the file.

    Args:
        shape: Shape without the batch dimension.
        dtype: `"float32"` or `"int32"`.
    """

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class TracedModel:
    """The functions of a model file. All take the weights first, then features and, except `infer`, labels.

    Args:
        layout: Names and shapes of the weights.
        features: Type of a sample's features.
        labels: Type of a sample's label.
        train: Returns the losses, and a gradient or None for every tensor of the layout.
        losses: Returns losses and outputs in evaluation mode.
        infer: Returns outputs in evaluation mode.
    """

    layout: Layout
    features: SampleSpec
    labels: SampleSpec
    train: TracedFunction
    losses: TracedFunction
    infer: TracedFunction

    @property
    def depends_on_batch(self) -> bool:
        """Whether the output for a sample depends on the other samples of its batch."""
        return any("batch_norm" in step.kind for step in self.infer.steps)


def trace_model(make: Callable[[], Any], loss: str | Callable[[Any, Any], Any], samples: Samples) -> TracedModel:
    """Trace a torch model and its loss. Frozen parameters become constants of the file.

    Args:
        make: Function that returns the torch model.
        loss: Loss name or function of the task.
        samples: Example samples, at least one.

    Returns:
        The traced functions.

    Raises:
        BadData: The model cannot be trained from a file.
    """
    import torch

    flat = FlatModule(make)
    module, values = flat.module, resolve_loss(loss)
    _check_only_parameters(module, flat.layout)
    names = [name for name, _ in flat.layout]
    features, labels = prepare_samples(samples)

    def inputs(size: int, count: int) -> tuple[Any, ...]:
        rows = np.arange(size) % len(labels)
        parameters = [each.detach().clone().requires_grad_() for each in flat.parameters]
        return (*parameters, *(make_batch(part, rows) for part in (features, labels)[:count]))

    def outputs(args: tuple[Any, ...]) -> torch.Tensor:
        weights = dict(zip(names, args[: len(names)], strict=True))
        result: torch.Tensor = torch.func.functional_call(module, weights, (args[len(names)],))
        return result

    def train(*args: Any) -> tuple[Any, ...]:
        losses = values(outputs(args), args[-1])
        if not losses.requires_grad:
            raise BadData("the model's output has no gradient for any weight: it cannot learn")
        return losses.detach(), *torch.autograd.grad(losses.mean(), args[: len(names)], allow_unused=True)

    module.train()
    train_trace = trace(train, lambda size: inputs(size, 2), module)
    module.eval()

    def evaluate(*args: Any) -> tuple[Any, ...]:
        result = outputs(args)
        return values(result, args[-1]), result

    with torch.no_grad():
        losses_trace = trace(evaluate, lambda size: inputs(size, 2), module)
        infer_trace = trace(lambda *args: (outputs(args),), lambda size: inputs(size, 1), module)
    return TracedModel(flat.layout, _spec(features), _spec(labels), train_trace, losses_trace, infer_trace)


def _spec(part: Any) -> SampleSpec:
    return SampleSpec(tuple(part.shape[1:]), "int32" if part.dtype == np.int64 else "float32")


def _check_only_parameters(module: Any, layout: Layout) -> None:
    """Refuse buffers that training changes, because they would stay on the device."""
    parameters = {name for name, _ in module.named_parameters()}
    for name, _ in layout:
        if name not in parameters:
            layer = name.rpartition(".")[0]
            kind = type(module.get_submodule(layer)).__name__
            raise BadData(
                f"layer {layer} ({kind}) keeps {name!r}, a buffer that training changes; a model file cannot hold it: "
                "use track_running_stats=False or a group norm"
            )
