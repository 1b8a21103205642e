"""The model of a file, whichever runtime it is for."""

from __future__ import annotations

from pathlib import Path

from fedbalancer.training.model_file import ModelFile

SUFFIXES = {"litert": ".tflite", "executorch": ".pte"}
"""How the files of every runtime end."""

MARK = slice(4, 6), b"ET"
"""Where a file of ExecuTorch says what it is, whatever its name."""


def open_model(path: Path | str, threads: int = 1) -> ModelFile:
    """The model in a file, by the runtime that its name ends in, or else its first bytes say; LiteRT if neither."""
    if runtime_of(Path(path)) == "executorch":
        from fedbalancer.training.executorch import ExecutorchModel

        return ExecutorchModel(path, threads)
    from fedbalancer.training.litert import LitertModel

    return LitertModel(path, threads)


def runtime_of(path: Path) -> str:
    """Which runtime the file is for."""
    by_name = {suffix: runtime for runtime, suffix in SUFFIXES.items()}
    if path.suffix in by_name:
        return by_name[path.suffix]
    if not path.is_file():
        return "litert"
    with path.open("rb") as file:
        return "executorch" if file.read(8)[MARK[0]] == MARK[1] else "litert"
