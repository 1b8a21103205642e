"""Model files of ExecuTorch; in Python its runtime needs torch for tensors."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, BadSetting, MissingData
from fedbalancer.core.types import ClientWork, FloatArray, Weights
from fedbalancer.training.model_file import ModelFile, check_exists, check_signatures, step_arguments

METHODS = ("train", "losses", "infer", "about")


class ExecutorchModel(ModelFile):
    """An ExecuTorch file; it is stateless, so each call passes the current and the initial weights.

    Args:
        path: The file.
        threads: Threads of the runtime.

    Raises:
        BadData: If there is no such file or it cannot be trained.
        MissingData: If ExecuTorch is not installed.
    """

    def __init__(self, path: Path | str, threads: int = 1) -> None:
        self._program = _open_program(Path(path), threads)
        self._methods = {name: _load_method(self._program, name, path) for name in METHODS}
        super().__init__(str(self._methods["about"].execute([])[0]).encode("utf-8"), path)
        self._max_batch = int(self.about["train_batch"])
        self._now: list[Any] = []
        self._start: list[Any] = []

    def put(self, weights: Weights) -> None:
        """Load weights, from which training starts."""
        self._now = self._start = [_tensor(each) for each in self.layout.split(weights).values()]

    def get(self) -> Weights:
        """Return the current weights."""
        names = (name for name, _ in self.layout)
        return self.layout.join({name: each.numpy() for name, each in zip(names, self._now, strict=True)})

    def step(self, features: NDArray[Any], labels: NDArray[Any], work: ClientWork) -> FloatArray:
        """Train one batch; return its per-sample losses before the step."""
        if len(labels) > self._max_batch:
            raise BadSetting(
                f"a batch of {len(labels)} samples is too large for this file, whose memory is laid out for "
                f"{self._max_batch}; lower the batch_size, or export the task with a larger one"
            )
        numbers = [np.float32(each) for each in step_arguments(work).values()]
        losses, *self._now = self._call("train", [*self._now, *self._start], [features, labels, *numbers])
        values: FloatArray = losses.double().numpy()
        return values

    def forward(self, features: NDArray[Any], labels: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return losses and outputs in evaluation mode."""
        losses, outputs = self._call("losses", self._now, [features, labels])
        return losses.numpy(), outputs.numpy()

    def infer(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Return the outputs of the model."""
        outputs: NDArray[np.float32] = self._call("infer", self._now, [features])[0].numpy()
        return outputs

    def _call(self, method: str, weights: Sequence[Any], arrays: Sequence[Any]) -> Sequence[Any]:
        try:
            results: Sequence[Any] = self._methods[method].execute([*weights, *map(_tensor, arrays)])
        except RuntimeError as error:
            shapes = " and ".join(str(np.shape(each)) for each in arrays if np.shape(each))
            raise BadData(f"ExecuTorch refuses {method!r} of samples {shapes}: {_shorten(error)}") from error
        return results


def _tensor(part: Any) -> Any:
    """Convert to the file's types: integers to int64; floats, bytes and booleans to float32."""
    import torch

    return torch.from_numpy(np.array(part, dtype=np.int64 if part.dtype == np.int64 else np.float32, order="C"))


def _open_program(path: Path, threads: int) -> Any:
    runtime = load_runtime()
    check_exists(path, "executorch")
    from executorch.extension.pybindings.portable_lib import _unsafe_reset_threadpool

    try:
        program = runtime.load_program(path)
    except RuntimeError as error:
        raise BadData(f"{path} is not an ExecuTorch model: {_shorten(error)}") from error
    check_signatures(path, program.method_names, METHODS)
    _unsafe_reset_threadpool(threads)
    return program


def _shorten(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _load_method(program: Any, name: str, path: Path | str) -> Any:
    try:
        return program.load_method(name)
    except RuntimeError as error:
        raise BadData(f"{path}: ExecuTorch cannot run {name!r}: {_shorten(error)}") from error


def load_runtime() -> Any:
    """Return ExecuTorch's runtime.

    Raises:
        MissingData: If ExecuTorch is not installed.
    """
    try:
        with silence():
            from executorch.runtime import Runtime
    except ImportError as error:
        raise MissingData(
            "an ExecuTorch model needs executorch; install it with: pip install 'fedbalancer[executorch]'"
        ) from error
    return Runtime.get()


@contextmanager
def silence() -> Iterator[None]:
    """A context without ExecuTorch's warnings about unused backends and graphics cards."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
