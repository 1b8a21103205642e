"""Writes one file that LiteRT can train, with the signatures `train`, `losses`, `infer`, `get`, `put` and `about`.

The file holds the steps without weights: its variables are empty until `put`. TensorFlow runs in its own process,
because it contains a copy of LLVM, and so does triton, which torch's CUDA builds load to trace a model. If triton's
copy is loaded second, it aborts the process.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedbalancer.core.errors import BadData, FedBalancerError, MissingData
from fedbalancer.core.processes import without_main
from fedbalancer.export.operators import Translation
from fedbalancer.export.replay import sgd_step
from fedbalancer.export.trace import TracedModel

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
