"""A model file without the zeros that its variables begin with.

TensorFlow writes the first value of every variable into the file, twice the size of the model for weights that `put`
replaces before anything else happens. Here the zeros are made on the device, by one operator each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

SMALL_BYTES = 64
"""Of zeros, which are not worth an operator."""


def without_zeros(data: bytes) -> bytes:
    """The same file, in which variables are filled with zeros when it is first used."""
    from tensorflow.lite.python import schema_py_generated as schema
    from tensorflow.lite.tools import flatbuffer_utils

    model = flatbuffer_utils.read_model_from_bytearray(bytearray(data))
    assign = schema.BuiltinOperator.ASSIGN_VARIABLE
    for graph in model.subgraphs:
        operators = []
        for operator in graph.operators:
            if _code(model, operator) == assign and _zeros(model, graph.tensors[operator.inputs[1]]):
                operators.append(_fill(schema, model, graph, operator.inputs[1]))
            operators.append(operator)
        graph.operators = operators
    return bytes(flatbuffer_utils.convert_object_to_bytearray(model))


def _code(model: Any, operator: Any) -> int:
    return int(model.operatorCodes[operator.opcodeIndex].builtinCode)


def _zeros(model: Any, tensor: Any) -> bool:
    held = model.buffers[tensor.buffer].data
    return held is not None and len(held) > SMALL_BYTES and not np.asarray(held).any()


def _fill(schema: Any, model: Any, graph: Any, number: int) -> Any:
    """An operator that makes the zeros of a tensor, whose own are taken out."""
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
