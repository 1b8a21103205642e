"""A ready client app for devices: a model file of `fedbalancer export`, run by LiteRT (with NumPy alone: no torch, no
TensorFlow) or by ExecuTorch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fedbalancer.flower.compat import ClientApp
from fedbalancer.flower.model_app import Data, Hold, model_app
from fedbalancer.flower.mods import Mod
from fedbalancer.training.model_file import ModelFile
from fedbalancer.training.open_model import open_model


def device_app(
    file: Path | str,
    data: Data,
    *,
    test: Data | None = None,
    method: Any = None,
    threads: int = 1,
    mods: Sequence[Mod] = (),
    hold: Hold | None = None,
) -> ClientApp:
    """A `ClientApp` that trains the model in `file` on `data(context)`, a pair (features, labels) with one row per
    sample. The server's model must be the one that was exported: the same names and shapes, in whatever order. A file
    that ends in `.pte` is ExecuTorch's, one in `.tflite` LiteRT's.

    Everything else is as in `client_app`; plain SGD (with mu and clip_norm as the server says) is what the file does.
    """

    @cache
    def ready() -> ModelFile:
        return open_model(file, threads)

    return model_app(lambda samples: ready(), data, test=test, method=method, mods=mods, hold=hold)
