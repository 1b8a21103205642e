"""What a run gave away about its clients' losses, as the run folder says it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedbalancer.client.summary import release_of
from fedbalancer.composition import Method
from fedbalancer.errors import MissingData
from fedbalancer.privacy import epsilon_of
from fedbalancer.settings import Settings
from fedbalancer.store.rows import PrivacyRow

METADATA_ONLY = "metadata only"
"""What every epsilon here is about: neither the updates of the model, nor sizes, nor how long a client took."""


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
    }


def privacy_rows(
    method: Method, settings: Settings, clients: Iterable[str], releases: Mapping[str, int]
) -> list[PrivacyRow]:
    """A row per client, by how often it has told of its losses. Without dp-accounting no epsilon is known."""
    release = release_of(method.client)
    delta = settings.privacy_delta
    epsilon = {count: _epsilon(release.noise_multiplier, count, delta) for count in {0, *releases.values()}}
    told = ((client, releases.get(client, 0)) for client in clients)
    return [PrivacyRow(client, count, epsilon[count], delta, release.unit, release.mechanism) for client, count in told]


def _epsilon(noise_multiplier: float, releases: int, delta: float) -> float | None:
    try:
        return epsilon_of(noise_multiplier, releases, delta)
    except MissingData:
        return None
