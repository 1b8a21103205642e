"""A device: a model file and its own samples. It says what large packages it has loaded, for the test to see."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context

from fedbalancer.flower import device_app


def data(context: Context) -> tuple[Any, Any]:
    """Linearly separable classes."""
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    features = rng.normal(size=(60, 2, 12)).astype(np.float32)
    scores = features.reshape(60, -1) @ np.random.default_rng(99).normal(size=(24, 3))
    large = {"torch", "tensorflow", "scipy", "polars"} & set(sys.modules)
    Path(str(context.node_config["says"])).write_text(f"loaded: {sorted(large)}")
    return features, scores.argmax(axis=1)


app = device_app(os.environ.get("GADGET_FILE", "small.tflite"), data)
