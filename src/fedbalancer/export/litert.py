"""One file for LiteRT that trains: signatures `train`, `losses`, `infer`, `get`, `put` and `about`.

The file holds the steps and not the weights, which come from the server anyway: its variables are empty until `put`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedbalancer.errors import BadData, MissingData
from fedbalancer.export.model import TracedModel
from fedbalancer.export.operators import Translation
from fedbalancer.export.slim import without_zeros


def tensorflow() -> Any:
    """TensorFlow, which writes the file, or how to get it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        import tensorflow as tf
    except ImportError as error:
        raise MissingData(
            "export needs TensorFlow (the device does not); install it with: pip install 'fedbalancer[export]'"
        ) from error
    return tf


def to_litert(model: TracedModel, about: Mapping[str, Any]) -> bytes:
    """The file of a traced model; `about` is what it tells of itself."""
    tf = tensorflow()
    module, signatures = _signatures(tf, model, json.dumps(about).encode("utf-8"))
    with TemporaryDirectory(prefix="fedbalancer-export-") as folder:
        tf.saved_model.save(module, folder, signatures=signatures)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        converter.experimental_enable_resource_variables = True
        try:
            return without_zeros(bytes(converter.convert()))
        except Exception as error:  # the converter raises whatever its parts do
            raise BadData(f"TensorFlow cannot convert the model to LiteRT: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if "error" in line.lower()] or [str(error)]
    return " ".join(lines[0].split())[:300]


def _signatures(tf: Any, model: TracedModel, about: bytes) -> tuple[Any, dict[str, Any]]:
    module, run, shapes = tf.Module(), Translation(tf).run, [shape for _, shape in model.layout]
    module.now, module.start = ([tf.Variable(np.zeros(shape, np.float32)) for shape in shapes] for _ in range(2))
    features = tf.TensorSpec((None, *model.features.shape), _kind(tf, model.features.dtype), "x")
    labels = tf.TensorSpec((None, *model.labels.shape), _kind(tf, model.labels.dtype), "y")
    number = [tf.TensorSpec((), tf.float32, name) for name in ("learning_rate", "mu", "clip_norm")]

    def weights(name: str) -> list[Any]:
        return [each.read_value() for each in getattr(module, name)]

    @tf.function(autograph=False, input_signature=[features, labels, *number])
    def train(x: Any, y: Any, learning_rate: Any, mu: Any, clip_norm: Any) -> dict[str, Any]:
        now = weights("now")
        losses, *gradients = run(model.train, [*now, x, y], tf.shape(x)[0])
        pairs = enumerate(zip(gradients, weights("start"), strict=True))
        moves = {n: gradient + mu * (now[n] - start) for n, (gradient, start) in pairs if gradient is not None}
        norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(move)) for move in moves.values()]))
        step = learning_rate * tf.minimum(1.0, clip_norm / (norm + 1e-6))
        for n, move in moves.items():
            module.now[n].assign(now[n] - step * move)
        return {"losses": losses}

    @tf.function(autograph=False, input_signature=[features, labels])
    def losses(x: Any, y: Any) -> dict[str, Any]:
        made = run(model.losses, [*weights("now"), x, y], tf.shape(x)[0])
        return dict(zip(("losses", "outputs"), made, strict=True))

    @tf.function(autograph=False, input_signature=[features])
    def infer(x: Any) -> dict[str, Any]:
        return {"outputs": run(model.infer, [*weights("now"), x], tf.shape(x)[0])[0]}

    @tf.function(autograph=False, input_signature=[])
    def get() -> dict[str, Any]:
        return {f"w{n}": value for n, value in enumerate(weights("now"))}

    @tf.function(
        autograph=False, input_signature=[tf.TensorSpec(shape, tf.float32, f"w{n}") for n, shape in enumerate(shapes)]
    )
    def put(*given: Any) -> dict[str, Any]:
        for now, start, value in zip(module.now, module.start, given, strict=True):
            now.assign(value)
            start.assign(value)
        return {"tensors": tf.constant(len(given))}

    @tf.function(autograph=False, input_signature=[])
    def told() -> dict[str, Any]:
        return {"json": tf.constant(np.frombuffer(about, np.uint8))}

    functions = {"train": train, "losses": losses, "infer": infer, "get": get, "put": put, "about": told}
    return module, {name: function.get_concrete_function() for name, function in functions.items()}


def _kind(tf: Any, dtype: str) -> Any:
    return tf.float32 if dtype == "float32" else tf.int32
