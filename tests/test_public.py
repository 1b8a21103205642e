"""The public surface, and the promise that the core needs NumPy alone."""

from __future__ import annotations

import subprocess
import sys

import fedbalancer as fb


def test_public_names() -> None:
    assert sorted(fb.__all__) == [
        "Comparison",
        "Device",
        "FedBalancerError",
        "Fleet",
        "Method",
        "Metric",
        "Ragged",
        "RunResult",
        "STOP",
        "Settings",
        "Task",
        "compare",
        "load_model",
        "load_task",
        "merge",
        "method",
        "resume",
        "run",
        "schedules",
    ]
    for name in fb.__all__:
        assert getattr(fb, name) is not None
    assert dir(fb) == sorted(fb.__all__)


def test_the_core_imports_with_numpy_alone() -> None:
    script = """
import importlib, pkgutil, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "polars", "pydantic", "typer", "rich", "matplotlib", "scipy",
                                  "safetensors"}:
            raise ImportError("the core must not need " + name)
sys.meta_path.insert(0, Refuse())
for package in ("server", "client.summary", "client.compress", "simulation.devices"):
    root = importlib.import_module("fedbalancer." + package)
    for module in pkgutil.walk_packages(root.__path__, root.__name__ + "."):
        importlib.import_module(module.name)
for module in ("core.types", "core.contracts", "core.randomness", "client.live", "client.policies",
               "client.samples", "server.server", "server.loop"):
    importlib.import_module("fedbalancer." + module)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
