"""Model files of LiteRT, which run on devices without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, MissingData
from fedbalancer.core.types import ClientWork, FloatArray, Weights
from fedbalancer.training.model_file import ModelFile, check_exists, check_signatures, step_arguments

SIGNATURES = ("train", "losses", "infer", "get", "put", "about")


class LitertModel(ModelFile):
    """A LiteRT file; one interpreter serves all calls, and the weights are its variables.

    Args:
        path: The file.
        threads: Threads of the interpreter.

    Raises:
        BadData: If there is no such file or it cannot be trained.
        MissingData: If LiteRT is not installed.
    """

    def __init__(self, path: Path | str, threads: int = 1) -> None:
        self._signatures = _open_signatures(Path(path), threads)
        super().__init__(bytes(self._signatures["about"]()["json"]), path)

    def put(self, weights: Weights) -> None:
        """Load weights, from which training starts."""
        tensors = self.layout.split(weights).values()
        self._signatures["put"](**{f"w{n}": np.ascontiguousarray(each) for n, each in enumerate(tensors)})

    def get(self) -> Weights:
        """Return the current weights."""
        tensors = self._signatures["get"]()
        return self.layout.join({name: tensors[f"w{n}"] for n, (name, _) in enumerate(self.layout)})

    def step(self, features: NDArray[Any], labels: NDArray[Any], work: ClientWork) -> FloatArray:
        """Train one batch; return its per-sample losses before the step."""
        arguments = {name: np.float32(value) for name, value in step_arguments(work).items()}
        results = self._signatures["train"](x=_convert(features), y=_convert(labels), **arguments)
        losses: FloatArray = results["losses"].astype(np.float64)
        return losses

    def forward(self, features: NDArray[Any], labels: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return losses and outputs in evaluation mode."""
        results = self._signatures["losses"](x=_convert(features), y=_convert(labels))
        return results["losses"], results["outputs"]

    def infer(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Return the outputs of the model."""
        outputs: NDArray[np.float32] = self._signatures["infer"](x=_convert(features))["outputs"]
        return outputs


def _convert(part: NDArray[Any]) -> NDArray[Any]:
    """Convert to the file's types: integers to int32; floats, bytes and booleans to float32."""
    return np.ascontiguousarray(part, dtype=np.int32 if part.dtype == np.int64 else np.float32)


def _open_signatures(path: Path, threads: int) -> dict[str, Any]:
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise MissingData(
            "a LiteRT model needs ai-edge-litert; install it with: pip install 'fedbalancer[device]'"
        ) from error
    check_exists(path, "litert")
    try:
        interpreter = Interpreter(model_path=str(path), num_threads=threads)
        known = set(interpreter.get_signature_list())
    except (ValueError, RuntimeError) as error:
        raise BadData(f"{path} is not a LiteRT model: {' '.join(str(error).split())[:200]}") from error
    check_signatures(path, known, SIGNATURES)
    return {name: interpreter.get_signature_runner(name) for name in SIGNATURES}
