"""FedBalancer: federated learning with sample selection and adaptive deadlines.

import fedbalancer as fb
result = fb.run("watch", method="fedbalancer", seed=0)
table = fb.compare("watch", methods=["fedavg+1t", "fedbalancer"], seeds=3)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedbalancer.core import schedules
    from fedbalancer.core.errors import FedBalancerError
    from fedbalancer.core.metrics import Metric
    from fedbalancer.core.samples import Ragged
    from fedbalancer.core.settings import Settings
    from fedbalancer.data import Task, load_task
    from fedbalancer.experiments import STOP, RunResult, compare, merge, resume, run
    from fedbalancer.methods.table import Method, method
    from fedbalancer.reporting import Comparison
    from fedbalancer.simulation.devices import Device, Fleet
    from fedbalancer.training.model_file import load_model

_MODULES = {"schedules": "core.schedules"}
_HOMES = {
    "Comparison": "reporting",
    "Device": "simulation.devices",
    "FedBalancerError": "core.errors",
    "Fleet": "simulation.devices",
    "Method": "methods",
    "Metric": "core.metrics",
    "Ragged": "core.samples",
    "RunResult": "experiments",
    "STOP": "experiments",
    "Settings": "core.settings",
    "Task": "data",
    "compare": "experiments",
    "load_model": "training.model_file",
    "load_task": "data",
    "merge": "experiments",
    "method": "methods",
    "resume": "experiments",
    "run": "experiments",
}

__all__ = [
    "STOP",
    "Comparison",
    "Device",
    "FedBalancerError",
    "Fleet",
    "Method",
    "Metric",
    "Ragged",
    "RunResult",
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


def __getattr__(name: str) -> Any:
    # Public names are found when first used: the core algorithms import with NumPy alone.
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"fedbalancer.{_MODULES[name]}")
    if name in _HOMES:
        return getattr(import_module(f"fedbalancer.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'fedbalancer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
