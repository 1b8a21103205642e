"""What a run gave away about its clients' losses, as the run folder says it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from fedbalancer.client.summary import release_of
from fedbalancer.composition import Method
from fedbalancer.errors import MissingData
from fedbalancer.privacy import Spending, composed, epsilon_of, spending_of
from fedbalancer.settings import Settings
from fedbalancer.store.rows import PrivacyRow

METADATA_ONLY = "metadata only"
"""What every epsilon here covers: not the model updates, nor how many samples a client has, nor when it replies."""


def model_noise(method: Method) -> float | None:
    """The noise on the aggregated model, over its sensitivity to one client; None where there is none."""
    found = getattr(method.server.aggregate, "model_noise_multiplier", None)
    return None if found is None else float(found)


def counted_noise(method: Method) -> float:
    """The noise of all that has an accountant: of the metadata, and with central privacy of the model of both."""
    model = model_noise(method)
    metadata = release_of(method.client).noise_multiplier
    return metadata if model is None else composed(metadata, model)


def spending_for(method: Method, settings: Settings, quiet: Collection[str]) -> Spending | None:
    """The counts of a run of this method, with its budget; None where there is nothing to count."""
    counted = spending_of(counted_noise(method), settings.epsilon_budget, settings.privacy_delta, quiet)
    return Spending(None, quiet) if counted is None and model_noise(method) else counted


def described_privacy(method: Method, settings: Settings) -> dict[str, Any]:
    """The field "privacy" of a manifest."""
    release = release_of(method.client)
    return {
        "covers": METADATA_ONLY,
        "mechanism": release.mechanism,
        "noise_multiplier": release.noise_multiplier,
        "unit": release.unit,
        "delta": settings.privacy_delta,
        "epsilon_budget": settings.epsilon_budget,
        "model_noise_multiplier": model_noise(method),
    }


def privacy_rows(
    method: Method, settings: Settings, clients: Iterable[str], releases: Mapping[str, int]
) -> list[PrivacyRow]:
    """A row per client, by how often it has told of its losses. Without dp-accounting no epsilon is known."""
    release = release_of(method.client)
    delta, model = settings.privacy_delta, model_noise(method)
    noises = (release.noise_multiplier, *((0.0, 0.0) if model is None else (model, counted_noise(method))))
    found = {count: [_epsilon(noise, count, delta) for noise in noises] for count in {0, *releases.values()}}
    told = ((client, releases.get(client, 0)) for client in clients)
    return [
        PrivacyRow(client, count, found[count][0], delta, release.unit, release.mechanism, *found[count][1:])
        for client, count in told
    ]


def _epsilon(noise_multiplier: float, releases: int, delta: float) -> float | None:
    try:
        return epsilon_of(noise_multiplier, releases, delta)
    except MissingData:
        return None
