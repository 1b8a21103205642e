"""A model on a device by ExecuTorch: a file of `fedbalancer export`. In Python its runtime needs torch for tensors."""

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
from fedbalancer.training.model_file import ModelFile, check_signatures, check_there, numbers_of

METHODS = ("train", "losses", "infer", "about")


class ExecutorchModel(ModelFile):
    """A file of ExecuTorch. It keeps nothing: the weights, now and as they were put, lie here and go into every
    call."""

    def __init__(self, path: Path | str, threads: int = 1) -> None:
        self._program = _opened(Path(path), threads)
        self._methods = {name: _loaded(self._program, name, path) for name in METHODS}
        super().__init__(str(self._methods["about"].execute([])[0]).encode("utf-8"), path)
        self._largest = int(self.about["train_batch"])
        self._now: list[Any] = []
        self._start: list[Any] = []

    def put(self, weights: Weights) -> None:
        self._now = self._start = [_tensor(each) for each in self.layout.split(weights).values()]

    def get(self) -> Weights:
        names = (name for name, _ in self.layout)
        return self.layout.join({name: each.numpy() for name, each in zip(names, self._now, strict=True)})

    def step(self, features: NDArray[Any], labels: NDArray[Any], work: ClientWork) -> FloatArray:
        if len(labels) > self._largest:
            raise BadSetting(
                f"a batch of {len(labels)} samples is more than this file can train: it takes {self._largest}, for "
                "which its memory is laid out; lower the batch_size, or export the task with a larger one"
            )
        numbers = [np.float32(each) for each in numbers_of(work).values()]
        losses, *self._now = self._called("train", [*self._now, *self._start], [features, labels, *numbers])
        found: FloatArray = losses.double().numpy()
        return found

    def look(self, features: NDArray[Any], labels: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        losses, outputs = self._called("losses", self._now, [features, labels])
        return losses.numpy(), outputs.numpy()

    def infer(self, features: NDArray[Any]) -> NDArray[np.float32]:
        outputs: NDArray[np.float32] = self._called("infer", self._now, [features])[0].numpy()
        return outputs

    def _called(self, method: str, weights: Sequence[Any], arrays: Sequence[Any]) -> Sequence[Any]:
        try:
            found: Sequence[Any] = self._methods[method].execute([*weights, *map(_tensor, arrays)])
        except RuntimeError as error:
            shapes = " and ".join(str(np.shape(each)) for each in arrays if np.shape(each))
            raise BadData(f"ExecuTorch refuses {method!r} of samples {shapes}: {_line(error)}") from error
        return found


def _tensor(part: Any) -> Any:
    """As the file takes it: whole numbers as int64, everything else, bytes of images included, as float32."""
    import torch

    return torch.from_numpy(np.array(part, dtype=np.int64 if part.dtype == np.int64 else np.float32, order="C"))


def _opened(path: Path, threads: int) -> Any:
    """The program of a file."""
    runtime = executorch_runtime()
    check_there(path, "executorch")
    from executorch.extension.pybindings.portable_lib import _unsafe_reset_threadpool

    try:
        program = runtime.load_program(path)
    except RuntimeError as error:
        raise BadData(f"{path} is no ExecuTorch model: {_line(error)}") from error
    check_signatures(path, program.method_names, METHODS)
    _unsafe_reset_threadpool(threads)
    return program


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _loaded(program: Any, name: str, path: Path | str) -> Any:
    try:
        return program.load_method(name)
    except RuntimeError as error:
        raise BadData(f"{path}: ExecuTorch cannot run {name!r}: {_line(error)}") from error


def executorch_runtime() -> Any:
    """ExecuTorch's runtime, or how to get it."""
    try:
        with quiet():
            from executorch.runtime import Runtime
    except ImportError as error:
        raise MissingData(
            "an ExecuTorch model needs executorch; install it with: pip install 'fedbalancer[executorch]'"
        ) from error
    return Runtime.get()


@contextmanager
def quiet() -> Iterator[None]:
    """Without what ExecuTorch's packages say of backends and graphics cards that nobody asked for."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
