"""One file for LiteRT that trains: signatures `train`, `losses`, `infer`, `get`, `put` and `about`.

The file holds the steps and not the weights, which come from the server anyway: its variables are empty until `put`.
TensorFlow runs in its own process. It contains a copy of LLVM, and so does triton, which torch's CUDA builds load to
trace a model: loaded after TensorFlow's, it aborts the process.
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
from fedbalancer.export.model import TracedModel
from fedbalancer.export.operators import Translation
from fedbalancer.export.replay import sgd_step
from fedbalancer.export.slim import without_zeros

MISSING = "export needs TensorFlow (the device does not); install it with: pip install 'fedbalancer[export]'"


def check_tensorflow() -> None:
    """Raise `MissingData` if TensorFlow is not installed, without loading it."""
    if find_spec("tensorflow") is None:
        raise MissingData(MISSING)


def write_litert(model: TracedModel, about: Mapping[str, Any]) -> bytes:
    """`to_litert` in its own process."""
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
    """Convert a traced model to the bytes of its file; `about` describes the model in it."""
    tf = _tensorflow()
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
    """The module that has the variables, and the functions of the file."""
    steps, module = _Steps(tf, model, about), tf.Module()
    module.now, module.start = steps.now, steps.start
    x = tf.TensorSpec((None, *model.features.shape), _kind(tf, model.features.dtype), "x")
    y = tf.TensorSpec((None, *model.labels.shape), _kind(tf, model.labels.dtype), "y")
    numbers = [tf.TensorSpec((), tf.float32, name) for name in ("learning_rate", "mu", "clip_norm")]
    weights = [tf.TensorSpec(shape, tf.float32, f"w{n}") for n, (_, shape) in enumerate(model.layout)]
    given = {"train": [x, y, *numbers], "losses": [x, y], "infer": [x], "get": [], "put": weights, "about": []}
    functions = {
        name: tf.function(getattr(steps, name), autograph=False, input_signature=inputs)
        for name, inputs in given.items()
    }
    return module, {name: function.get_concrete_function() for name, function in functions.items()}


class _Steps:
    """The signatures as functions of TensorFlow."""

    def __init__(self, tf: Any, model: TracedModel, about: bytes) -> None:
        self._tf, self._model, self._about, self._run = tf, model, about, Translation(tf).run
        self.now, self.start = (
            [tf.Variable(np.zeros(shape, np.float32)) for _, shape in model.layout] for _ in range(2)
        )

    def train(self, x: Any, y: Any, learning_rate: Any, mu: Any, clip_norm: Any) -> dict[str, Any]:
        """One step of SGD; the losses from before it."""
        tf, now = self._tf, _read(self.now)
        losses, *gradients = self._run(self._model.train, [*now, x, y], tf.shape(x)[0])
        for n, moved in sgd_step(tf, now, _read(self.start), gradients, learning_rate, mu, clip_norm).items():
            self.now[n].assign(moved)
        return {"losses": losses}

    def losses(self, x: Any, y: Any) -> dict[str, Any]:
        made = self._run(self._model.losses, [*_read(self.now), x, y], self._tf.shape(x)[0])
        return dict(zip(("losses", "outputs"), made, strict=True))

    def infer(self, x: Any) -> dict[str, Any]:
        return {"outputs": self._run(self._model.infer, [*_read(self.now), x], self._tf.shape(x)[0])[0]}

    def get(self) -> dict[str, Any]:
        return {f"w{n}": value for n, value in enumerate(_read(self.now))}

    def put(self, *given: Any) -> dict[str, Any]:
        for now, start, value in zip(self.now, self.start, given, strict=True):
            now.assign(value)
            start.assign(value)
        return {"tensors": self._tf.constant(len(given))}

    def about(self) -> dict[str, Any]:
        return {"json": self._tf.constant(np.frombuffer(self._about, np.uint8))}


def _read(variables: list[Any]) -> list[Any]:
    return [each.read_value() for each in variables]


def _kind(tf: Any, dtype: str) -> Any:
    return tf.float32 if dtype == "float32" else tf.int32
