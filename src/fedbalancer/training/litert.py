"""A model on a device without torch: a file of `fedbalancer export`, run by LiteRT and NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, MissingData
from fedbalancer.core.types import ClientWork, FloatArray, Weights
from fedbalancer.training.model_file import ModelFile, check_signatures, check_there, numbers_of

SIGNATURES = ("train", "losses", "infer", "get", "put", "about")


class LitertModel(ModelFile):
    """A file of LiteRT. One interpreter is used for all calls; the weights are its variables."""

    def __init__(self, path: Path | str, threads: int = 1) -> None:
        self._signatures = _opened(Path(path), threads)
        super().__init__(bytes(self._signatures["about"]()["json"]), path)

    def put(self, weights: Weights) -> None:
        tensors = self.layout.split(weights).values()
        self._signatures["put"](**{f"w{n}": np.ascontiguousarray(each) for n, each in enumerate(tensors)})

    def get(self) -> Weights:
        found = self._signatures["get"]()
        return self.layout.join({name: found[f"w{n}"] for n, (name, _) in enumerate(self.layout)})

    def step(self, features: NDArray[Any], labels: NDArray[Any], work: ClientWork) -> FloatArray:
        given = {name: np.float32(value) for name, value in numbers_of(work).items()}
        found = self._signatures["train"](x=_device(features), y=_device(labels), **given)
        losses: FloatArray = found["losses"].astype(np.float64)
        return losses

    def look(self, features: NDArray[Any], labels: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        found = self._signatures["losses"](x=_device(features), y=_device(labels))
        return found["losses"], found["outputs"]

    def infer(self, features: NDArray[Any]) -> NDArray[np.float32]:
        outputs: NDArray[np.float32] = self._signatures["infer"](x=_device(features))["outputs"]
        return outputs


def _device(part: NDArray[Any]) -> NDArray[Any]:
    """As the file takes it: whole numbers as int32, everything else, bytes of images included, as float32."""
    return np.ascontiguousarray(part, dtype=np.int32 if part.dtype == np.int64 else np.float32)


def _opened(path: Path, threads: int) -> dict[str, Any]:
    """The signatures of a file."""
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise MissingData(
            "a LiteRT model needs ai-edge-litert; install it with: pip install 'fedbalancer[device]'"
        ) from error
    check_there(path, "litert")
    try:
        interpreter = Interpreter(model_path=str(path), num_threads=threads)
        known = set(interpreter.get_signature_list())
    except (ValueError, RuntimeError) as error:
        raise BadData(f"{path} is no LiteRT model: {' '.join(str(error).split())[:200]}") from error
    check_signatures(path, known, SIGNATURES)
    return {name: interpreter.get_signature_runner(name) for name in SIGNATURES}
