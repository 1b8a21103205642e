"""The privacy figures of a run: what they claim, and the rows and manifest fields that record them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedbalancer.client.summary import release_of
from fedbalancer.core.contracts import Private
from fedbalancer.core.errors import BadSetting, MissingData
from fedbalancer.core.settings import Settings
from fedbalancer.core.wrapping import reactions
from fedbalancer.methods.composition import Method
from fedbalancer.privacy import Spending, compose_noise, epsilon_of, spending_of
from fedbalancer.server.server import STATEFUL_SLOTS
from fedbalancer.store.rows import PrivacyRow

METADATA_ONLY = "metadata only"
"""What every epsilon here covers: not the model updates, nor how many samples a client has, nor when it replies."""


@dataclass(frozen=True)
class Claim:
    """A privacy claim as noise over sensitivity. 0 claims nothing: epsilon is infinite, and `why` is the reason."""

    noise_multiplier: float
    why: str = ""


def model_noise(method: Method) -> float | None:
    """The noise on the aggregated model, over its sensitivity to one client; None where there is none."""
    noise = method.server.aggregate.model_noise_multiplier
    return None if noise is None else float(noise)


def model_claim(method: Method) -> Claim | None:
    """The claim that the models hide one client, whose update is in the sums or is zeros; None without noise on them.

    The noise hides what the client adds to a sum. It does not hide how the client moves what others add, so there is a
    figure only where no policy reacts to its report, or the metadata hide the client as well.
    """
    noise, release = model_noise(method), release_of(method.client)
    if noise is None:
        return None
    if why := _moves_others(method):
        return Claim(0.0, why)
    reacting = _names(method, "losses")
    if not reacting or math.isinf(release.noise_multiplier):
        return Claim(noise)
    if release.noise_multiplier == 0:
        return Claim(0.0, f"other clients are steered by a client's exact statistics of losses ({reacting})")
    if release.unit != "client":
        return Claim(
            0.0,
            f"other clients are steered by what a client releases of its losses ({reacting}), and the noise on that "
            f"hides one {release.unit}, not the client",
        )
    return Claim(compose_noise(release.noise_multiplier, noise))


def whole_claim(method: Method) -> Claim:
    """The claim that models and metadata together hide one `unit` of the metadata; without noise on the model, the
    claim of the metadata alone. A changed sample turns one update into another, which moves a sum twice as far as an
    update that is there or not."""
    noise, release = model_noise(method), release_of(method.client)
    if noise is None:
        return Claim(release.noise_multiplier)
    if why := _moves_others(method):
        return Claim(0.0, why)
    if release.noise_multiplier == 0:
        return Claim(0.0, f"the metadata (summary {release.mechanism}) have no finite epsilon")
    return Claim(compose_noise(release.noise_multiplier, noise if release.unit == "client" else noise / 2))


def _moves_others(method: Method) -> str:
    """Why one client's data move what other clients add to the model, whatever the noise on the metadata is; empty if
    they do not."""
    if reactions(method.samples):
        return (
            f"{type(method.samples).__name__} selects samples by their losses, and how many they are decides who is in "
            "time"
        )
    if reacting := _names(method, "updates"):
        return f"a client's update may change what becomes of the others' ({reacting})"
    return ""


def _names(method: Method, part: Private) -> str:
    """The server policies that react to a part of the reports."""
    policies = [getattr(method.server, slot) for slot in STATEFUL_SLOTS]
    return ", ".join(type(policy).__name__ for policy in policies if part in reactions(policy))


def spending_for(method: Method, settings: Settings, quiet: Collection[str]) -> Spending | None:
    """The counts of a run of this method, with its budget; None where there is nothing to count."""
    claim, budget = whole_claim(method), settings.epsilon_budget
    if budget is not None and claim.why:
        raise BadSetting(f"epsilon_budget = {budget:g}: epsilon is infinite, because {claim.why}")
    counted = spending_of(claim.noise_multiplier, budget, settings.privacy_delta, quiet)
    return Spending(None, quiet) if counted is None and model_noise(method) else counted


def is_private(method: Method) -> bool:
    """Whether a run of this method promises privacy: of the metadata, of the model, or of both."""
    return release_of(method.client).noise_multiplier > 0 or model_noise(method) is not None


def describe_privacy(method: Method, settings: Settings) -> dict[str, Any]:
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
        "model_why": "" if (model := model_claim(method)) is None else model.why,
        "whole_why": whole_claim(method).why,
    }


def privacy_rows(
    method: Method, settings: Settings, clients: Iterable[str], releases: Mapping[str, int]
) -> list[PrivacyRow]:
    """A row per client, by the number of its releases. Without dp-accounting no epsilon is known."""
    release = release_of(method.client)
    delta, model = settings.privacy_delta, model_claim(method)
    of_model = (0.0, 0.0) if model is None else (model.noise_multiplier, whole_claim(method).noise_multiplier)
    noises = (release.noise_multiplier, *of_model)
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
