"""Privacy claims of a method, and the rows and manifest fields that record them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedbalancer.core.contracts import Private
from fedbalancer.core.errors import BadSetting, MissingData
from fedbalancer.core.settings import Settings
from fedbalancer.core.wrapping import reactions
from fedbalancer.methods.composition import Method
from fedbalancer.privacy import Spending, compose_noise, epsilon_of, spending_of
from fedbalancer.server.server import STATEFUL_SLOTS
from fedbalancer.store.rows import PrivacyRow

METADATA_ONLY = "metadata only"
"""Scope of every epsilon: model updates, numbers of samples and reply times are not covered."""


@dataclass(frozen=True)
class Claim:
    """A privacy claim.

    Args:
        noise_multiplier: Noise divided by sensitivity. 0: no claim, epsilon is infinite.
        why: Reason for an infinite epsilon.
    """

    noise_multiplier: float
    why: str = ""


def model_noise(method: Method) -> float | None:
    """Return the noise on the aggregated model, divided by its sensitivity to one client; None without noise."""
    noise = method.server.aggregate.model_noise_multiplier
    return None if noise is None else float(noise)


def model_claim(method: Method) -> Claim | None:
    """Return the claim that the models hide one client; None without noise on the models.

    The noise hides the client's contribution to a sum, but not its influence on the contributions of others. The claim
    is therefore finite only if no policy reacts to the client's report, or if the metadata hide the client too.
    """
    noise, release = model_noise(method), method.client.release()
    if noise is None:
        return None
    if why := _explain_influence(method):
        return Claim(0.0, why)
    reacting = _name_reacting(method, "losses")
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
    """Return the claim that models and metadata together hide one unit of the metadata.

    Without noise on the model, this is the claim of the metadata. A changed sample replaces one update by another,
    which changes a sum by up to twice as much as adding or removing an update.
    """
    noise, release = model_noise(method), method.client.release()
    if noise is None:
        return Claim(release.noise_multiplier, _explain_influence(method) if method.client.undeclared_training else "")
    if why := _explain_influence(method):
        return Claim(0.0, why)
    if release.noise_multiplier == 0:
        return Claim(0.0, f"the metadata (summary {release.mechanism}) have no finite epsilon")
    return Claim(compose_noise(release.noise_multiplier, noise if release.unit == "client" else noise / 2))


def _explain_influence(method: Method) -> str:
    """Return why a client's data influence the updates of others despite noise on the metadata; "" if they do not."""
    if training := method.client.undeclared_training:
        return f"{training} may send or keep arrays that depend on a client's data, and no noise covers them"
    if reactions(method.samples):
        return (
            f"{type(method.samples).__name__} selects samples by their losses, and how many they are decides who is in "
            "time"
        )
    if reacting := _name_reacting(method, "updates"):
        return f"a client's update may change what becomes of the others' ({reacting})"
    return ""


def _name_reacting(method: Method, part: Private) -> str:
    """Return the names of the server policies that react to a part of the reports."""
    policies = [getattr(method.server, slot) for slot in STATEFUL_SLOTS]
    return ", ".join(type(policy).__name__ for policy in policies if part in reactions(policy))


def spending_for(method: Method, settings: Settings, quiet: Collection[str]) -> Spending | None:
    """Return the privacy accounting of a run; None if there is nothing to count.

    Args:
        method: The method.
        settings: Settings of the run.
        quiet: Clients that may not report losses any more.

    Raises:
        BadSetting: If there is an epsilon budget, but epsilon is infinite.
    """
    claim, budget = whole_claim(method), settings.epsilon_budget
    if budget is not None and claim.why:
        raise BadSetting(f"epsilon_budget = {budget:g}: epsilon is infinite, because {claim.why}")
    spending = spending_of(claim.noise_multiplier, budget, settings.privacy_delta, quiet)
    return Spending(None, quiet) if spending is None and model_noise(method) else spending


def is_private(method: Method) -> bool:
    """Return whether the method protects the metadata, the model, or both."""
    return method.client.release().noise_multiplier > 0 or model_noise(method) is not None


def describe_privacy(method: Method, settings: Settings) -> dict[str, Any]:
    """Return the field "privacy" of a manifest."""
    release = method.client.release()
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
    """Return one row per client. An epsilon is None if dp-accounting is not installed.

    Args:
        method: The method.
        settings: Settings of the run.
        clients: All clients.
        releases: Number of releases of each client.
    """
    release = method.client.release()
    delta, model = settings.privacy_delta, model_claim(method)
    of_model = (0.0, 0.0) if model is None else (model.noise_multiplier, whole_claim(method).noise_multiplier)
    noises = (release.noise_multiplier, *of_model)
    epsilons = {count: [_epsilon(noise, count, delta) for noise in noises] for count in {0, *releases.values()}}
    counts = ((client, releases.get(client, 0)) for client in clients)
    return [
        PrivacyRow(client, count, epsilons[count][0], delta, release.unit, release.mechanism, *epsilons[count][1:])
        for client, count in counts
    ]


def _epsilon(noise_multiplier: float, releases: int, delta: float) -> float | None:
    try:
        return epsilon_of(noise_multiplier, releases, delta)
    except MissingData:
        return None
