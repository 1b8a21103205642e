"""How the model at the end of a run does on every client's own data, and of which classes it was made."""

from __future__ import annotations

import math

from fedbalancer.core.randomness import stream
from fedbalancer.core.types import ServerState
from fedbalancer.experiments.simulation import Simulation
from fedbalancer.simulation.devices import Phones
from fedbalancer.store import ClassRow, PopulationRow


def population_of(simulation: Simulation, state: ServerState) -> list[PopulationRow]:
    """A row per client, in order of client id. If there are more than `eval_clients`, the model is evaluated on so many
    of them, which the seed draws: the same for every method."""
    ledger, devices = state.ledger, simulation.engine.devices
    known = isinstance(devices, Phones)
    classes = devices.device_classes(ledger.clients) if known else [""] * len(ledger.clients)  # type: ignore[attr-defined]
    chosen = _chosen(ledger.clients, simulation.settings.eval_clients, simulation.spec.seed)
    evaluations = simulation.executor.evaluate_clients(simulation.server.model(state), chosen)
    found = {client: each.accuracy for client, each in zip(chosen, evaluations, strict=True)}
    return [
        PopulationRow(client, samples, device, state.clock_s, _known(found.get(client)))
        for client, samples, device in zip(ledger.clients, ledger.size.tolist(), classes, strict=True)
    ]


def classes_of(simulation: Simulation, state: ServerState) -> list[ClassRow]:
    """A row per class; none where nobody counted."""
    counted = simulation.engine.classes
    if counted is None:
        return []
    pairs = zip(counted.held.tolist(), counted.trained.tolist(), strict=True)
    return [ClassRow(label, held, trained, state.clock_s) for label, (held, trained) in enumerate(pairs)]


def _chosen(clients: tuple[str, ...], most: int, seed: int) -> list[str]:
    if len(clients) <= most:
        return list(clients)
    drawn = stream(seed, "evaluated clients").choice(len(clients), size=most, replace=False)
    return [clients[row] for row in sorted(drawn.tolist())]


def _known(accuracy: float | None) -> float | None:
    return None if accuracy is None or math.isnan(accuracy) else accuracy
