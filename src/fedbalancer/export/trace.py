"""The training step of a torch model as a list of plain operations, its gradients included.

torch writes down what it does for a batch of one size and for one of another. What differs between the two is what
depends on the size of the batch; everything else is fixed. So nobody writes gradients by hand, and no model has to be
written in a special way.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedbalancer.core.errors import BadData

if TYPE_CHECKING:
    import torch

BATCHES = (7, 11)
"""The two sizes: no layer has so many of anything by its nature, and if it has, the other size shows it."""


@dataclass(frozen=True)
class Ref:
    """The result of an earlier step, by its name."""

    name: str


@dataclass(frozen=True)
class PerBatch:
    """A number that depends on the batch: `times` its samples, or `times` divided by them."""

    times: float
    divided: bool = False


@dataclass(frozen=True)
class Step:
    """One operation: what kind (torch's name of it, `input` or `constant`), on what, and in which layer."""

    name: str
    kind: str
    args: tuple[Any, ...]
    options: dict[str, Any]
    layer: str

    @property
    def place(self) -> str:
        """Where in the model that is, for people."""
        return f"layer {self.layer}" if self.layer else "the loss, or between two layers"


@dataclass(frozen=True)
class Traced:
    """A function as steps; the inputs come first, in the order in which the function takes them."""

    steps: tuple[Step, ...]
    outputs: tuple[Ref | None, ...]


def traced(function: Callable[..., Any], example: Callable[[int], tuple[Any, ...]], module: torch.nn.Module) -> Traced:
    """What `function` does with `example(size)`, for every size of a batch; `module` is whose layers are named."""
    one, other = (_steps(function, example(size), module) for size in BATCHES)
    if [(step.name, step.kind) for step in one.steps] != [(step.name, step.kind) for step in other.steps]:
        raise BadData(f"the model does something else for {BATCHES[0]} samples than for {BATCHES[1]}; that has no file")
    return Traced(tuple(_merged(a, b) for a, b in zip(one.steps, other.steps, strict=True)), one.outputs)


def _steps(function: Callable[..., Any], inputs: tuple[Any, ...], module: torch.nn.Module) -> Traced:
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    layers: dict[Any, str] = {}
    # Without oneDNN a recurrent layer is written down as the products and gates that it consists of.
    with warnings.catch_warnings(), _named_layers(module, layers):
        warnings.simplefilter("ignore", UserWarning)  # of graphics cards that nobody asked for
        with torch.backends.mkldnn.flags(enabled=False):
            graph = make_fx(function, decomposition_table=_table())(*inputs)
    graph.graph.eliminate_dead_code()
    steps, outputs = [], ()
    inputs_of = (node for node in graph.graph.nodes if node.op == "placeholder")
    layers.update(zip(inputs_of, _owners(module), strict=False))  # parameters come first
    for node in graph.graph.nodes:
        if node.op == "output":
            outputs = _plain(node.args[0])
            continue
        layer = layers.get(node) or next((layers[n] for n in reversed(node.all_input_nodes) if layers.get(n)), "")
        layers[node] = layer
        kind = {"placeholder": "input", "get_attr": "constant"}.get(node.op) or _kind(node.target)
        args = (getattr(graph, node.target).detach().numpy(),) if kind == "constant" else _plain(node.args)
        steps.append(Step(node.name, kind, args, {k: _plain(v) for k, v in node.kwargs.items()}, layer))
    return Traced(tuple(steps), tuple(outputs))


def _kind(target: Any) -> str:
    name = str(target)
    return "getitem" if "getitem" in name else name


def _table() -> dict[Any, Any]:
    """Which operations torch is to write as simpler ones: all but those for which the file has a shorter way."""
    import torch
    from torch._decomp import core_aten_decompositions

    kept = {torch.ops.aten.embedding_dense_backward.default}
    table: dict[Any, Any] = dict(core_aten_decompositions())
    return {name: rule for name, rule in table.items() if name not in kept}


@contextmanager
def _named_layers(module: torch.nn.Module, layers: dict[Any, str]) -> Iterator[None]:
    """While a function is traced, note which operations each layer of the module makes."""
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


def _owners(module: torch.nn.Module) -> list[str]:
    """Of every parameter, the layer that has it."""
    names = [name.rpartition(".")[0] for name, _ in module.named_parameters()]
    return [layer_name(name, module.get_submodule(name)) for name in names]


def layer_name(name: str, layer: torch.nn.Module) -> str:
    """How a layer is spoken of: `blocks.2 (MaxPool2d)`."""
    return f"{name or 'the model'} ({type(layer).__name__})"


def _plain(value: Any) -> Any:
    """Arguments without torch's objects: results by name, types by theirs."""
    import torch

    if isinstance(value, torch.fx.Node):
        return Ref(value.name)
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    if isinstance(value, torch.dtype | torch.layout | torch.device | torch.memory_format):
        return str(value)
    return value


def _merged(one: Step, other: Step) -> Step:
    try:
        args = _same(one.args, other.args)
        options = {key: _same(value, other.options[key]) for key, value in one.options.items()}
    except ValueError as error:
        raise BadData(f"{one.place}: {error}; a file for any size of batch cannot hold that") from error
    return Step(one.name, one.kind, args, options, one.layer)


def _same(a: Any, b: Any) -> Any:
    """A value of both traces, or how it depends on the size of the batch."""
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return tuple(_same(*pair) for pair in zip(a, b, strict=True))
    if hasattr(a, "dtype") and hasattr(b, "dtype") and a.shape == b.shape and (a == b).all():
        return a
    if hasattr(a, "dtype") or hasattr(b, "dtype"):
        raise ValueError("it makes a constant for every batch")
    if a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)):
        return a
    numbers = isinstance(a, int | float) and isinstance(b, int | float)
    if numbers and math.isclose(a / BATCHES[0], b / BATCHES[1], rel_tol=1e-12):
        return PerBatch(a / BATCHES[0])
    if numbers and math.isclose(a * BATCHES[0], b * BATCHES[1], rel_tol=1e-12):
        return PerBatch(a * BATCHES[0], divided=True)
    raise ValueError(f"it works with {a} for {BATCHES[0]} samples and {b} for {BATCHES[1]}")
