"""Each named method as a composition of slots. This file reads like the table of methods.

A name is a base and any modifiers: `fedavg+1t`, `fedbalancer`, `fedbalancer+qffl`, `fedbalancer-deadline`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from fedbalancer.client.compress import (
    GradientDropping,
    LowRank,
    Quantised,
    RandomMask,
    SignSGD,
    Subsample,
)
from fedbalancer.client.policies import CLIENT_SLOTS, ClientPolicies
from fedbalancer.client.samples import EverySample, HighestLoss, OverThreshold, OverThresholdBatch, RandomSamples
from fedbalancer.client.summary import LossStatistics, Silent
from fedbalancer.client.work import WholeBatches, WholeEpochs
from fedbalancer.errors import BadSetting, UnknownName
from fedbalancer.protocols import DeadlinePolicy
from fedbalancer.server.aggregate import (
    QFFL,
    FedAdagrad,
    FedAdam,
    FedYogi,
    Krum,
    MajorityVote,
    Median,
    ServerMomentum,
    TrimmedMean,
)
from fedbalancer.server.clients import FedCS, Oort, OverThresholdUtility, PowerOfChoice, Uniform
from fedbalancer.server.deadline import FirstReports, FixedDeadline, PeakDeadline, WaitForShare
from fedbalancer.server.pace import RatioControl
from fedbalancer.server.policies import SERVER_SLOTS, ServerPolicies
from fedbalancer.server.threshold import InterpolatedThreshold, NoThreshold
from fedbalancer.settings import Settings
from fedbalancer.slots import SLOTS, check_composition, load_policy
from fedbalancer.types import Ledger, Setup

__all__ = ["BASES", "MODIFIERS", "SLOTS", "Method", "load_policy", "method", "setup_of"]


@dataclass(frozen=True)
class Method:
    """What the server runs and what its clients run: one choice per slot. The defaults are FedAvg, waiting for all."""

    name: str
    server: ServerPolicies = field(default_factory=ServerPolicies)
    client: ClientPolicies = field(default_factory=ClientPolicies)

    def __getattr__(self, slot: str) -> Any:
        """The choice in a slot, whichever side runs it: `method.deadline` is `method.server.deadline`."""
        for side, slots in (("server", SERVER_SLOTS), ("client", CLIENT_SLOTS)):
            if slot in slots:
                return getattr(getattr(self, side), slot)
        raise AttributeError(f"a method has no {slot!r}")

    def changed(self, **slots: Any) -> Method:
        """The same method with other choices in some slots, whichever side runs them.

        >>> Method("mine").changed(deadline=FixedDeadline(2), mu=0.1).client.mu
        0.1
        """
        for slot in slots:
            if slot not in (*SERVER_SLOTS, *CLIENT_SLOTS):
                raise UnknownName("slot", slot, [*SERVER_SLOTS, *CLIENT_SLOTS])
        return Method(
            self.name,
            replace(self.server, **{slot: policy for slot, policy in slots.items() if slot in SERVER_SLOTS}),
            replace(self.client, **{slot: policy for slot, policy in slots.items() if slot in CLIENT_SLOTS}),
        )


def _fedavg(name: str, deadline: DeadlinePolicy, s: Settings) -> Method:
    return Method(name).changed(deadline=deadline, summary=_summary(s))


def _prox(name: str, multiple: float, s: Settings) -> Method:
    prox = Method(name).changed(work=WholeEpochs(), mu=s.prox_mu, summary=_summary(s))
    return prox.changed(deadline=FixedDeadline(multiple))


def _sample_selection(s: Settings) -> Method:
    return _prox("sampleselection", s.sample_selection_deadline, s).changed(samples=HighestLoss())


def _fedbalancer(s: Settings) -> Method:
    return Method("fedbalancer").changed(
        clients=_clients(s),
        samples=OverThreshold(s.p),
        deadline=PeakDeadline(s.deadline_counts, s.deadline_grid, s.deadline_gate, s.deadline_gate_clients, s.guard_s),
        work=WholeEpochs(),
        threshold=InterpolatedThreshold(s.loss_history),
        pace=RatioControl(s.w, s.lss, s.dss),
        summary=_summary(s),
        mu=s.fedbalancer_mu,
        forward_pass=s.forward_pass,
    )


def _clients(s: Settings) -> OverThresholdUtility:
    return OverThresholdUtility(
        alpha=s.alpha,
        exploration=s.exploration,
        exploration_decay=s.exploration_decay,
        exploration_min=s.exploration_min,
        clip=s.utility_clip,
        cutoff=s.utility_cutoff,
        normalise=s.normalise_utility,
    )


def _oort(s: Settings) -> Method:
    return Method("oort").changed(
        clients=Oort(
            alpha=s.oort_alpha,
            exploration=s.exploration,
            exploration_decay=s.exploration_decay,
            exploration_min=s.exploration_min,
            clip=s.utility_clip,
            cutoff=s.utility_cutoff,
            overcommit=s.oort_overcommit,
            pacer_window=s.oort_pacer_window,
            pacer_start=s.oort_pacer_start,
            pacer_delta=s.oort_pacer_delta,
            blacklist=math.inf if s.oort_blacklist is None else s.oort_blacklist,
        ),
        deadline=FirstReports(),
        summary=replace(_summary(s), over_samples="selected"),
        epoch_batches=1,
    )


def _oortbalancer(s: Settings) -> Method:
    clients = replace(_clients(s), alpha=s.oort_alpha)
    return _fedbalancer(s).changed(clients=clients, samples=OverThresholdBatch(s.p), epoch_batches=1)


def _summary(s: Settings) -> LossStatistics:
    return LossStatistics(s.noise_factor, s.utility_samples)


BASES: dict[str, tuple[str, Callable[[Settings], Method]]] = {
    "fedavg+1t": ("FedAvg, fixed deadline T", lambda s: _fedavg("fedavg+1t", FixedDeadline(1), s)),
    "fedavg+2t": ("FedAvg, fixed deadline 2 T", lambda s: _fedavg("fedavg+2t", FixedDeadline(2), s)),
    "fedavg+spc": ("FedAvg, SmartPC: 80 % report", lambda s: _fedavg("fedavg+spc", WaitForShare(s.smartpc_share), s)),
    "fedavg+wfa": ("FedAvg, waits for all", lambda s: _fedavg("fedavg+wfa", WaitForShare(), s)),
    "prox+1t": ("Prox, partial epochs, deadline T", lambda s: _prox("prox+1t", 1, s)),
    "prox+2t": ("Prox, partial epochs, deadline 2 T", lambda s: _prox("prox+2t", 2, s)),
    "sampleselection": ("highest losses, big clients cut at P80", _sample_selection),
    "oort": ("Oort: clients by utility and speed, one batch an epoch", _oort),
    "fedbalancer": ("sample selection and adaptive deadlines", _fedbalancer),
    "oortbalancer": ("FedBalancer on Oort's one batch an epoch", _oortbalancer),
}

Modifier = Callable[[Method, Settings], Method]

MODIFIERS: dict[str, tuple[str, Modifier]] = {
    # How much a client does, and what it knows of its losses.
    "+batches": ("clients stop after the batches that fit", lambda m, s: m.changed(work=WholeBatches())),
    "+forwardpass": ("a fresh forward pass every round", lambda m, s: m.changed(forward_pass="every")),
    "+silent": ("clients release nothing about their losses", lambda m, s: m.changed(summary=Silent())),
    # Who takes part.
    "+powerofchoice": (
        "clients of high loss among some drawn by size",
        lambda m, s: m.changed(clients=PowerOfChoice(s.candidates)),
    ),
    "+fedcs": ("as many fast clients as fit", lambda m, s: m.changed(clients=FedCS(s.candidates))),
    # How updates become a model.
    "+qffl": ("q-FFL: high losses count for more", lambda m, s: m.changed(aggregate=QFFL(s.qffl_q))),
    "+momentum": (
        "momentum on the server",
        lambda m, s: m.changed(aggregate=ServerMomentum(s.server_momentum, s.server_momentum_eta)),
    ),
    "+fedadam": (
        "Adam on the server",
        lambda m, s: m.changed(aggregate=FedAdam(s.server_eta, s.server_beta_1, s.server_beta_2, s.server_tau)),
    ),
    "+fedyogi": (
        "Yogi on the server",
        lambda m, s: m.changed(aggregate=FedYogi(s.server_eta, s.server_beta_1, s.server_beta_2, s.server_tau)),
    ),
    "+fedadagrad": (
        "Adagrad on the server",
        lambda m, s: m.changed(aggregate=FedAdagrad(s.server_eta, s.server_tau)),
    ),
    "+median": ("the median of every parameter", lambda m, s: m.changed(aggregate=Median())),
    "+trimmedmean": ("the mean without extremes", lambda m, s: m.changed(aggregate=TrimmedMean(s.trim_share))),
    "+krum": (
        "Krum: the updates closest to the others",
        lambda m, s: m.changed(aggregate=Krum(s.krum_malicious, s.krum_keep)),
    ),
    # How updates travel.
    "+structured": ("Structured Updates of low rank", lambda m, s: m.changed(compress=LowRank(s.structured_rank))),
    "+mask": ("Structured Updates by a random mask", lambda m, s: m.changed(compress=RandomMask(s.mask_share))),
    "+subsample": ("a random share of each update", lambda m, s: m.changed(compress=Subsample(s.subsample_share))),
    "+quantised": ("few bits per parameter, rotated", lambda m, s: m.changed(compress=Quantised(s.quantised_bits))),
    "+graddrop": (
        "the largest changes",
        lambda m, s: m.changed(compress=GradientDropping(s.drop_keep)),
    ),
    "+signsgd": (
        "signs only, majority vote",
        lambda m, s: m.changed(compress=SignSGD(), aggregate=MajorityVote(s.vote_step)),
    ),
    # What FedBalancer is without one of its parts.
    "+randomsamples": ("as many samples, at random", lambda m, s: m.changed(samples=RandomSamples())),
    "-samples": (
        "without sample selection",
        lambda m, s: m.changed(samples=EverySample(), threshold=NoThreshold()),
    ),
    "-deadline": ("without deadline control: T", lambda m, s: m.changed(deadline=FixedDeadline(1))),
    "-clients": ("without client selection", lambda m, s: m.changed(clients=Uniform())),
}


def method(name: str, settings: Settings | None = None, **slots: Any) -> Method:
    """A named method; any slot may be replaced.

    >>> method("fedavg+1t", deadline=FixedDeadline(1.5)).deadline
    FixedDeadline(multiple=1.5)
    """
    settings = settings if settings is not None else Settings()
    base = next((known for known in sorted(BASES, key=len, reverse=True) if _starts(name, known)), None)
    if base is None:
        raise UnknownName("method", name, BASES)
    result = BASES[base][1](settings)
    for modifier in _modifiers(name, name[len(base) :]):
        before, result = result, MODIFIERS[modifier][1](result, settings)
        if modifier.startswith("-") and result == before:
            raise BadSetting(f"method {name!r}: {base} is {MODIFIERS[modifier][0].partition(':')[0]} anyway")
    named = {slot: load_policy(slot, path) for slot, path in settings.slots.items()}
    made = replace(result.changed(**{**named, **slots}), name=name)
    check_composition(made)
    return made


def setup_of(method: Method, ledger: Ledger, settings: Settings, seed: int) -> Setup:
    """What the server of a method knows before the first round."""
    return Setup(
        ledger=ledger,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        clients_per_round=settings.clients_per_round,
        seed=seed,
        sample_cap=method.client.samples.cap(ledger.size),
        epoch_batches=method.server.epoch_batches,
        learning_rate=settings.learning_rate,
        clip_norm=settings.clip_norm,
        looks_every_round=method.client.forward_pass == "every",
    )


def _starts(name: str, base: str) -> bool:
    return name == base or (name.startswith(base) and name[len(base)] in "+-")


def _modifiers(name: str, rest: str) -> list[str]:
    found: list[str] = []
    while rest:
        modifier = next((known for known in sorted(MODIFIERS, key=len, reverse=True) if _starts(rest, known)), None)
        if modifier is None:
            raise UnknownName(f"modifier in method {name!r}:", rest, MODIFIERS)
        found.append(modifier)
        rest = rest[len(modifier) :]
    return found
