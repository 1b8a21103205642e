"""Writes one file that LiteRT can train, with the signatures `train`, `losses`, `infer`, `get`, `put` and `about`.

The file holds the steps without weights: its variables are empty until `put`. TensorFlow runs in its own process,
because it contains a copy of LLVM, and so does triton, which torch's CUDA builds load to trace a model. If triton's
copy is loaded second, it aborts the process. `Translation` runs the steps of torch with TensorFlow operations that
LiteRT has built in.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedbalancer.core.errors import BadData, FedBalancerError, MissingData
from fedbalancer.core.processes import without_main
from fedbalancer.export import layers
from fedbalancer.export.layers import Replay, Unsupported, sgd_step
from fedbalancer.export.trace import PerBatch, TracedModel

MISSING = "export needs TensorFlow (the device does not); install it with: pip install 'fedbalancer[export]'"


def check_tensorflow() -> None:
    """Raise `MissingData` if TensorFlow is not installed, without importing it."""
    if find_spec("tensorflow") is None:
        raise MissingData(MISSING)


def write_litert(model: TracedModel, about: Mapping[str, Any]) -> bytes:
    """Run `to_litert` in its own process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        with without_main():
            conversion = pool.submit(to_litert, model, about)
        try:
            return conversion.result()
        except BrokenProcessPool as error:
            raise FedBalancerError("the process that runs TensorFlow died; it may need more memory") from error


def _tensorflow() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        import tensorflow as tf
    except ImportError as error:
        raise MissingData(f"{MISSING} ({error})") from error
    return tf


def to_litert(model: TracedModel, about: Mapping[str, Any]) -> bytes:
    """Convert a traced model to the bytes of its file.

    Args:
        model: The traced model.
        about: Description of the model, stored in the file.

    Returns:
        The content of the file.

    Raises:
        BadData: TensorFlow cannot convert the model.
    """
    tf = _tensorflow()
    module, signatures = _signatures(tf, model, json.dumps(about).encode("utf-8"))
    with TemporaryDirectory(prefix="fedbalancer-export-") as folder:
        tf.saved_model.save(module, folder, signatures=signatures)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        converter.experimental_enable_resource_variables = True
        try:
            return strip_zeros(bytes(converter.convert()))
        except Exception as error:  # the converter raises arbitrary exceptions
            raise BadData(f"TensorFlow cannot convert the model to LiteRT: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if "error" in line.lower()] or [str(error)]
    return " ".join(lines[0].split())[:300]


def _signatures(tf: Any, model: TracedModel, about: bytes) -> tuple[Any, dict[str, Any]]:
    """Return the module that holds the variables, and the functions of the file."""
    steps, module = _Steps(tf, model, about), tf.Module()
    module.now, module.start = steps.now, steps.start
    x = tf.TensorSpec((None, *model.features.shape), _tf_type(tf, model.features.dtype), "x")
    y = tf.TensorSpec((None, *model.labels.shape), _tf_type(tf, model.labels.dtype), "y")
    numbers = [tf.TensorSpec((), tf.float32, name) for name in ("learning_rate", "mu", "clip_norm")]
    weights = [tf.TensorSpec(shape, tf.float32, f"w{n}") for n, (_, shape) in enumerate(model.layout)]
    inputs_of = {"train": [x, y, *numbers], "losses": [x, y], "infer": [x], "get": [], "put": weights, "about": []}
    functions = {
        name: tf.function(getattr(steps, name), autograph=False, input_signature=inputs)
        for name, inputs in inputs_of.items()
    }
    return module, {name: function.get_concrete_function() for name, function in functions.items()}


class _Steps:
    """The signatures as TensorFlow functions."""

    def __init__(self, tf: Any, model: TracedModel, about: bytes) -> None:
        self._tf, self._model, self._about, self._run = tf, model, about, Translation(tf).run
        self.now, self.start = (
            [tf.Variable(np.zeros(shape, np.float32)) for _, shape in model.layout] for _ in range(2)
        )

    def train(self, x: Any, y: Any, learning_rate: Any, mu: Any, clip_norm: Any) -> dict[str, Any]:
        """Take one SGD step. Returns the losses before it."""
        tf, now = self._tf, _read_values(self.now)
        losses, *gradients = self._run(self._model.train, [*now, x, y], tf.shape(x)[0])
        for n, moved in sgd_step(tf, now, _read_values(self.start), gradients, learning_rate, mu, clip_norm).items():
            self.now[n].assign(moved)
        return {"losses": losses}

    def losses(self, x: Any, y: Any) -> dict[str, Any]:
        outputs = self._run(self._model.losses, [*_read_values(self.now), x, y], self._tf.shape(x)[0])
        return dict(zip(("losses", "outputs"), outputs, strict=True))

    def infer(self, x: Any) -> dict[str, Any]:
        return {"outputs": self._run(self._model.infer, [*_read_values(self.now), x], self._tf.shape(x)[0])[0]}

    def get(self) -> dict[str, Any]:
        return {f"w{n}": value for n, value in enumerate(_read_values(self.now))}

    def put(self, *given: Any) -> dict[str, Any]:
        for now, start, value in zip(self.now, self.start, given, strict=True):
            now.assign(value)
            start.assign(value)
        return {"tensors": self._tf.constant(len(given))}

    def about(self) -> dict[str, Any]:
        return {"json": self._tf.constant(np.frombuffer(self._about, np.uint8))}


def _read_values(variables: list[Any]) -> list[Any]:
    return [each.read_value() for each in variables]


def _tf_type(tf: Any, dtype: str) -> Any:
    return tf.float32 if dtype == "float32" else tf.int32


SMALL_BYTES = 64
"""Largest tensor of zeros that stays in the file."""


def strip_zeros(data: bytes) -> bytes:
    """Return the same file without the zeros of its variables.

    TensorFlow stores the initial value of every variable, twice the size of the model, although `put` replaces them
    first. The returned file fills each variable with one operator when it is first used.
    """
    from tensorflow.lite.python import schema_py_generated as schema
    from tensorflow.lite.tools import flatbuffer_utils

    model = flatbuffer_utils.read_model_from_bytearray(bytearray(data))
    assign = schema.BuiltinOperator.ASSIGN_VARIABLE
    for graph in model.subgraphs:
        operators = []
        for operator in graph.operators:
            if _code(model, operator) == assign and _is_zeros(model, graph.tensors[operator.inputs[1]]):
                operators.append(_fill(schema, model, graph, operator.inputs[1]))
            operators.append(operator)
        graph.operators = operators
    return bytes(flatbuffer_utils.convert_object_to_bytearray(model))


def _code(model: Any, operator: Any) -> int:
    return int(model.operatorCodes[operator.opcodeIndex].builtinCode)


def _is_zeros(model: Any, tensor: Any) -> bool:
    content = model.buffers[tensor.buffer].data
    return content is not None and len(content) > SMALL_BYTES and not np.asarray(content).any()


def _fill(schema: Any, model: Any, graph: Any, number: int) -> Any:
    """Return an operator that creates a tensor's zeros, and remove them from the file."""
    tensor = graph.tensors[number]
    model.buffers[tensor.buffer].data, tensor.buffer = None, 0
    shape = _constant(schema, model, graph, np.asarray(tensor.shape, np.int32), schema.TensorType.INT32)
    zero = _constant(schema, model, graph, np.float32(0.0), schema.TensorType.FLOAT32)
    operator = schema.OperatorT()
    operator.opcodeIndex = _fill_code(schema, model)
    operator.inputs, operator.outputs = np.array([shape, zero], np.int32), np.array([number], np.int32)
    return operator


def _constant(schema: Any, model: Any, graph: Any, value: Any, kind: int) -> int:
    buffer, tensor = schema.BufferT(), schema.TensorT()
    buffer.data = np.frombuffer(np.asarray(value).tobytes(), np.uint8)
    model.buffers.append(buffer)
    tensor.shape, tensor.type, tensor.buffer = list(np.shape(value)), kind, len(model.buffers) - 1
    tensor.name = b"fill"
    graph.tensors.append(tensor)
    return len(graph.tensors) - 1


def _fill_code(schema: Any, model: Any) -> int:
    fill = schema.BuiltinOperator.FILL
    for number, code in enumerate(model.operatorCodes):
        if code.builtinCode == fill:
            return number
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = fill
    code.version = 1
    model.operatorCodes.append(code)
    return len(model.operatorCodes) - 1


class Translation(Replay):
    """Runs the steps of a traced function on TensorFlow tensors. Integers become int32."""

    supported = "in LiteRT's built-in operations"

    def __init__(self, tf: Any) -> None:
        super().__init__(tf)

    def operation(self, kind: str) -> Callable[..., Any] | None:
        return OPERATIONS.get(kind)

    def constant(self, value: Any) -> Any:
        return self.tf.constant(_narrow(value))

    def number(self, value: Any) -> Any:
        """Return an operand; one that depends on the batch size becomes a float32 tensor."""
        if not isinstance(value, PerBatch):
            return value
        samples = self.tf.cast(self._batch, self.tf.float32)
        return value.times / samples if value.divided else value.times * samples

    def shape(self, dims: Sequence[Any]) -> Any:
        """Return a shape as an operand."""
        if not any(isinstance(dim, PerBatch) for dim in dims):
            return tuple(dims)
        return self.tf.stack([self._batch * round(d.times) if isinstance(d, PerBatch) else d for d in dims])


def _narrow(array: Any) -> Any:
    array = np.asarray(array)
    return array.astype(np.int32) if array.dtype == np.int64 else array


def _dtype(t: Translation, name: str | None) -> Any:
    kinds = {
        "torch.float32": t.tf.float32,
        "torch.int64": t.tf.int32,
        "torch.int32": t.tf.int32,
        "torch.bool": t.tf.bool,
    }
    if name is not None and name not in kinds:
        raise Unsupported(f"uses {name}; only float32, integers and booleans are supported")
    return None if name is None else kinds[name]


def _view(t: Translation, x: Any, dims: Sequence[Any]) -> Any:
    depends = sum(isinstance(dim, PerBatch) for dim in dims)
    if depends <= 1 and -1 not in dims:
        return t.tf.reshape(x, tuple(-1 if isinstance(dim, PerBatch) else dim for dim in dims))
    return t.tf.reshape(x, t.shape(dims))


def _expand(t: Translation, x: Any, dims: Sequence[Any], **_: Any) -> Any:
    sizes = [1] * (len(dims) - len(x.shape)) + list(x.shape)
    wanted = [size if dim == -1 else dim for size, dim in zip(sizes, dims, strict=True)]
    x = t.tf.reshape(x, (1,) * (len(dims) - len(x.shape)) + tuple(x.shape)) if len(dims) > len(x.shape) > 0 else x
    return x if tuple(wanted) == tuple(x.shape) else t.tf.broadcast_to(x, t.shape(wanted))


def _full(t: Translation, dims: Sequence[Any], value: Any, dtype: str | None = None, **_: Any) -> Any:
    return t.tf.fill(t.shape(dims), t.tf.cast(value, _dtype(t, dtype) or t.tf.float32))


def _scalar(t: Translation, value: Any, dtype: str | None = None, **_: Any) -> Any:
    return t.tf.cast(t.number(value), _dtype(t, dtype) or t.tf.float32)


def _arange(t: Translation, start: int, end: Any, step: int = 1, dtype: str | None = None, **_: Any) -> Any:
    if any(isinstance(each, PerBatch) for each in (start, end, step)):
        raise Unsupported("over the batch is not supported")
    return t.tf.cast(np.arange(start, end, step), _dtype(t, dtype) or t.tf.int32)


def _full_like(t: Translation, x: Any, value: Any, dtype: str | None = None, **_: Any) -> Any:
    return t.tf.fill(t.tf.shape(x), t.tf.cast(value, _dtype(t, dtype) or x.dtype))


def _like(t: Translation, a: Any, b: Any) -> tuple[Any, Any]:
    """Cast two operands to one type: numbers take the tensor's."""
    a, b = t.number(a), t.number(b)
    kinds = [each.dtype for each in (a, b) if hasattr(each, "dtype")]
    kind = t.tf.float32 if t.tf.float32 in kinds else kinds[0]
    return tuple(t.tf.cast(each, kind) for each in (a, b))


def _binary(function: str) -> Callable[..., Any]:
    def apply(t: Translation, a: Any, b: Any, alpha: float = 1) -> Any:
        a, b = _like(t, a, b)
        return getattr(t.tf, function)(a, b if alpha == 1 else b * t.tf.cast(alpha, b.dtype))

    return apply


def _unary(function: str) -> Callable[..., Any]:
    def apply(t: Translation, x: Any, **_: Any) -> Any:
        operation = t.tf
        for part in function.split("."):
            operation = getattr(operation, part)
        return operation(x)

    return apply


def _reduction(function: str) -> Callable[..., Any]:
    def apply(t: Translation, x: Any, dims: Sequence[int] | None = None, keep: bool = False, **_: Any) -> Any:
        return getattr(t.tf, function)(x, axis=list(dims) if dims else None, keepdims=keep)

    return apply


def _where(t: Translation, mask: Any, a: Any, b: Any) -> Any:
    return t.tf.where(mask, *_like(t, a, b))


def _squeeze(t: Translation, x: Any, dims: int | Sequence[int]) -> Any:
    axes = [dim % len(x.shape) for dim in ((dims,) if isinstance(dims, int) else dims)]
    return t.tf.squeeze(x, [axis for axis in axes if x.shape[axis] == 1])


def _permute(t: Translation, x: Any, dims: Sequence[int]) -> Any:
    return t.tf.transpose(x, [dim % len(x.shape) for dim in dims])


def _gather(t: Translation, x: Any, dim: int, index: Any) -> Any:
    """Pick one value per row."""
    if dim % len(x.shape) != len(x.shape) - 1 or index.shape[-1] != 1:
        raise Unsupported("is supported for one value of every row only")
    mask = t.tf.one_hot(index[..., 0], x.shape[-1], dtype=x.dtype)
    return t.tf.reduce_sum(x * mask, axis=-1, keepdims=True)


def _scatter(t: Translation, base: Any, dim: int, index: Any, value: float) -> Any:
    if dim % len(base.shape) != len(base.shape) - 1 or index.shape[-1] != 1:
        raise Unsupported("is supported for one value of every row only")
    mask = t.tf.one_hot(index[..., 0], base.shape[-1], dtype=base.dtype)
    return base * (1 - mask) + t.tf.cast(value, base.dtype) * mask


def _addmm(t: Translation, bias: Any, a: Any, b: Any) -> Any:
    return t.tf.matmul(a, b) + bias


def _log_softmax(t: Translation, x: Any, dim: int, half: bool) -> Any:
    if dim % len(x.shape) != len(x.shape) - 1:
        raise Unsupported(f"over dimension {dim} of {len(x.shape)} is not supported, only over the last")
    return t.tf.nn.log_softmax(x)


def _softmax(t: Translation, x: Any, dim: int, half: bool) -> Any:
    return t.tf.exp(_log_softmax(t, x, dim, half))


def _to(t: Translation, x: Any, dtype: str | None = None, **_: Any) -> Any:
    return x if dtype is None else t.tf.cast(x, _dtype(t, dtype))


def _same(t: Translation, x: Any, *_: Any, **__: Any) -> Any:
    return x


def _item(t: Translation, parts: Any, place: int) -> Any:
    return parts[place]


def _matmul(t: Translation, a: Any, b: Any) -> Any:
    return t.tf.matmul(a, b)


def _unsqueeze(t: Translation, x: Any, dim: int) -> Any:
    return t.tf.expand_dims(x, dim)


def _clamp(t: Translation, x: Any, low: Any = None, high: Any = None) -> Any:
    x = x if low is None else t.tf.maximum(x, t.tf.cast(low, x.dtype))
    return x if high is None else t.tf.minimum(x, t.tf.cast(high, x.dtype))


def _power(t: Translation, x: Any, exponent: Any) -> Any:
    return t.tf.square(x) if exponent == 2 else t.tf.pow(x, t.tf.cast(exponent, x.dtype))


OPERATIONS: dict[str, Callable[..., Any]] = {
    "getitem": _item,
    **{f"aten.{name}.default": _same for name in ("alias", "clone", "detach", "contiguous", "lift_fresh_copy")},
    # In-place operations of recurrent layers; the overwritten values are not used again.
    "aten.add_.Tensor": _binary("add"),
    "aten.sigmoid_.default": _unary("sigmoid"),
    "aten.tanh_.default": _unary("tanh"),
    **{f"aten.{name}.default": _unary(function) for name, function in {
        "relu": "nn.relu", "exp": "exp", "log": "math.log", "neg": "negative", "sigmoid": "sigmoid", "tanh": "tanh",
        "sqrt": "sqrt", "rsqrt": "math.rsqrt", "abs": "abs", "bitwise_not": "logical_not", "logical_not": "logical_not",
        "reciprocal": "math.reciprocal",
    }.items()},
    **{f"aten.{name}.{kind}": _binary(function) for kind in ("Tensor", "Scalar") for name, function in {
        "add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "eq": "equal", "ne": "not_equal",
        "le": "less_equal", "lt": "less", "ge": "greater_equal", "gt": "greater", "bitwise_and": "logical_and",
        "maximum": "maximum",
    }.items()},
    "aten.maximum.default": _binary("maximum"),
    "aten.minimum.default": _binary("minimum"),
    "aten.pow.Tensor_Scalar": _power,
    "aten.clamp.default": _clamp,
    "aten.sum.dim_IntList": _reduction("reduce_sum"),
    "aten.sum.default": _reduction("reduce_sum"),
    "aten.mean.dim": _reduction("reduce_mean"),
    "aten.mean.default": _reduction("reduce_mean"),
    "aten.amax.default": _reduction("reduce_max"),
    "aten.mm.default": _matmul,
    "aten.bmm.default": _matmul,
    "aten.addmm.default": _addmm,
    "aten.view.default": _view,
    "aten._unsafe_view.default": _view,
    "aten.reshape.default": _view,
    "aten.expand.default": _expand,
    "aten.permute.default": _permute,
    "aten.unsqueeze.default": _unsqueeze,
    "aten.squeeze.dims": _squeeze,
    "aten.squeeze.dim": _squeeze,
    "aten.slice_scatter.default": layers.slice_scatter,
    "aten.select.int": layers.select,
    "aten.select_scatter.default": layers.select_scatter,
    "aten.cat.default": layers.cat,
    "aten.split.Tensor": layers.split,
    "aten.split_with_sizes.default": layers.split,
    "aten.full.default": _full,
    "aten.full_like.default": _full_like,
    "aten.arange.start_step": _arange,
    "aten.scalar_tensor.default": _scalar,
    "aten.where.self": _where,
    "aten.gather.default": _gather,
    "aten.scatter.value": _scatter,
    "aten._to_copy.default": _to,
    "aten._log_softmax.default": _log_softmax,
    "aten._softmax.default": _softmax,
    "aten.embedding.default": layers.embedding,
    **layers.LAYERS,
}  # fmt: skip
"""Maps torch's operation names to functions of the translation and the operation's arguments."""
