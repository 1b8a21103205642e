"""FedBalancer on Flower: the same policies on real devices, with deadlines that hold on the wall clock.

On the server, inside a plain `ServerApp`:

    strategy = fedbalancer.flower.Strategy(method="fedbalancer", clients_per_round=10, epochs=5)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=50)

On a client, for torch `app = fedbalancer.flower.client_app(model=..., data=...)`; on a device without torch
`app = fedbalancer.flower.device_app("model.tflite", data=...)`; for any framework `introduce(app, ...)` once and three
calls in the train function: `balanced`, `work.select`, `work.reply`.

The engine of this world lives here too, beside its public face: `grid_engine.py` is to Flower what
`engine/simulated.py` is to the virtual clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbalancer.flower.aggregation import FlowerAggregator
    from fedbalancer.flower.client import LocalRound, balanced, introduce
    from fedbalancer.flower.client_apps import client_app, device_app
    from fedbalancer.flower.strategy import Strategy

_HOMES = {
    "FlowerAggregator": "aggregation",
    "LocalRound": "client",
    "Strategy": "strategy",
    "balanced": "client",
    "client_app": "client_apps",
    "device_app": "client_apps",
    "introduce": "client",
}

__all__ = ["FlowerAggregator", "LocalRound", "Strategy", "balanced", "client_app", "device_app", "introduce"]


def __getattr__(name: str) -> Any:
    # Imported at first use, so that this package can be imported without flwr.
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(f"fedbalancer.flower.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'fedbalancer.flower' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
