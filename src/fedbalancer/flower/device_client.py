"""A ready client app for devices: a model file of `fedbalancer export`, LiteRT and NumPy; no torch, no TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fedbalancer.client.litert import LitertModel
from fedbalancer.flower.compat import ClientApp
from fedbalancer.flower.model_app import Data, Hold, model_app
from fedbalancer.flower.mods import Mod


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
    sample. The server's model must be the one that was exported: the same names and shapes, in whatever order.

    Everything else is as in `client_app`; plain SGD (with mu and clip_norm as the server says) is what the file does.
    """

    @cache
    def ready() -> LitertModel:
        return LitertModel(file, threads)

    return model_app(lambda samples: ready(), data, test=test, method=method, mods=mods, hold=hold)
