"""FedBalancer on Flower: `Strategy` for the server, `client_app`, `device_app` or `balanced` for the clients.

The policies are those of the simulator. Deadlines hold on the wall clock, and runs resume after a crash.
`grid_engine.py` is the engine, as `simulation/engine.py` is the simulator's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbalancer.flower.aggregation import FlowerAggregator
    from fedbalancer.flower.client import LocalRound, balanced
    from fedbalancer.flower.client_apps import client_app, device_app
    from fedbalancer.flower.introduction import introduce
    from fedbalancer.flower.model_arrays import trained_arrays
    from fedbalancer.flower.secure import SecureAggregation
    from fedbalancer.flower.strategy import Strategy
    from fedbalancer.flower.timings import record_timings, timing_mod

_HOMES = {
    "FlowerAggregator": "aggregation",
    "LocalRound": "client",
    "SecureAggregation": "secure",
    "Strategy": "strategy",
    "balanced": "client",
    "client_app": "client_apps",
    "device_app": "client_apps",
    "introduce": "introduction",
    "record_timings": "timings",
    "timing_mod": "timings",
    "trained_arrays": "model_arrays",
}

__all__ = [
    "FlowerAggregator",
    "LocalRound",
    "SecureAggregation",
    "Strategy",
    "balanced",
    "client_app",
    "device_app",
    "introduce",
    "record_timings",
    "timing_mod",
    "trained_arrays",
]


def __getattr__(name: str) -> Any:
    # Imported at first use, so that this package can be imported without flwr.
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(f"fedbalancer.flower.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'fedbalancer.flower' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
