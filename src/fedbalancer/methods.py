"""Each named method as a composition of slots. This file reads like the table of methods.

A name is a base and any modifiers: `fedavg+1t`, `fedbalancer`, `fedbalancer+qffl`, `fedbalancer-deadline`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from fedbalancer.client.compress import (
    GradientDropping,
    LowRank,
    NoCompression,
    Quantised,
    RandomMask,
    SignSGD,
    Subsample,
)
from fedbalancer.client.samples import EverySample, HighestLoss, OverThreshold, OverThresholdBatch, RandomSamples
from fedbalancer.client.summary import LossStatistics, Silent
from fedbalancer.client.work import AllOrNothing, WholeBatches, WholeEpochs
from fedbalancer.errors import BadSetting, UnknownName
from fedbalancer.protocols import (
    Aggregator,
    ClientSelector,
    Compressor,
    DeadlinePolicy,
    PacePolicy,
    SampleSelector,
    Summarizer,
    ThresholdPolicy,
    Work,
)
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
    WeightedMean,
)
from fedbalancer.server.clients import FedCS, Oort, OverThresholdUtility, PowerOfChoice, Uniform
from fedbalancer.server.deadline import FirstReports, FixedDeadline, PeakDeadline, Quorum
from fedbalancer.server.pace import ConstantPace, RatioControl
from fedbalancer.server.threshold import InterpolatedThreshold, NoThreshold
from fedbalancer.settings import Settings
from fedbalancer.slots import SLOTS, check_composition, load_policy

__all__ = ["BASES", "MODIFIERS", "SLOTS", "Method", "load_policy", "method"]


@dataclass(frozen=True)
class Method:
    """One choice per slot. The defaults are FedAvg that waits for all."""

    name: str
    clients: ClientSelector = field(default_factory=Uniform)
    samples: SampleSelector = field(default_factory=EverySample)
    deadline: DeadlinePolicy = field(default_factory=Quorum)
    work: Work = field(default_factory=AllOrNothing)
    aggregate: Aggregator = field(default_factory=WeightedMean)
    threshold: ThresholdPolicy = field(default_factory=NoThreshold)
    pace: PacePolicy = field(default_factory=ConstantPace)
    summary: Summarizer = field(default_factory=LossStatistics)
    compress: Compressor = field(default_factory=NoCompression)
    mu: float = 0.0
    forward_pass: Literal["first", "every"] = "first"
    epoch_batches: int | None = None


def _fedavg(name: str, deadline: DeadlinePolicy, s: Settings) -> Method:
    return Method(name, deadline=deadline, summary=_summary(s))


def _prox(name: str, multiple: float, s: Settings) -> Method:
    return Method(name, deadline=FixedDeadline(multiple), work=WholeEpochs(), mu=s.prox_mu, summary=_summary(s))


def _sample_selection(s: Settings) -> Method:
    return replace(_prox("sampleselection", s.sample_selection_deadline, s), samples=HighestLoss())


def _fedbalancer(s: Settings) -> Method:
    return Method(
        "fedbalancer",
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
    return Method(
        "oort",
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
    balancer = _fedbalancer(s)
    clients = replace(_clients(s), alpha=s.oort_alpha)
    return replace(balancer, clients=clients, samples=OverThresholdBatch(s.p), epoch_batches=1)


def _summary(s: Settings) -> LossStatistics:
    return LossStatistics(s.noise_factor, s.utility_samples)


BASES: dict[str, tuple[str, Callable[[Settings], Method]]] = {
    "fedavg+1t": ("FedAvg, fixed deadline T", lambda s: _fedavg("fedavg+1t", FixedDeadline(1), s)),
    "fedavg+2t": ("FedAvg, fixed deadline 2 T", lambda s: _fedavg("fedavg+2t", FixedDeadline(2), s)),
    "fedavg+spc": ("FedAvg, SmartPC: closes at 80 %", lambda s: _fedavg("fedavg+spc", Quorum(s.smartpc_share), s)),
    "fedavg+wfa": ("FedAvg, waits for all", lambda s: _fedavg("fedavg+wfa", Quorum(), s)),
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
    "+batches": ("clients stop after the batches that fit", lambda m, s: replace(m, work=WholeBatches())),
    "+forwardpass": ("a fresh forward pass every round", lambda m, s: replace(m, forward_pass="every")),
    "+silent": ("clients release nothing about their losses", lambda m, s: replace(m, summary=Silent())),
    # Who takes part.
    "+powerofchoice": (
        "clients of high loss among some drawn by size",
        lambda m, s: replace(m, clients=PowerOfChoice(s.candidates)),
    ),
    "+fedcs": ("as many fast clients as fit", lambda m, s: replace(m, clients=FedCS(s.candidates))),
    # How updates become a model.
    "+qffl": ("q-FFL: high losses count for more", lambda m, s: replace(m, aggregate=QFFL(s.qffl_q))),
    "+momentum": (
        "momentum on the server",
        lambda m, s: replace(m, aggregate=ServerMomentum(s.server_momentum, s.server_momentum_eta)),
    ),
    "+fedadam": (
        "Adam on the server",
        lambda m, s: replace(m, aggregate=FedAdam(s.server_eta, s.server_beta_1, s.server_beta_2, s.server_tau)),
    ),
    "+fedyogi": (
        "Yogi on the server",
        lambda m, s: replace(m, aggregate=FedYogi(s.server_eta, s.server_beta_1, s.server_beta_2, s.server_tau)),
    ),
    "+fedadagrad": (
        "Adagrad on the server",
        lambda m, s: replace(m, aggregate=FedAdagrad(s.server_eta, s.server_tau)),
    ),
    "+median": ("the median of every parameter", lambda m, s: replace(m, aggregate=Median())),
    "+trimmedmean": ("the mean without extremes", lambda m, s: replace(m, aggregate=TrimmedMean(s.trim_share))),
    "+krum": (
        "Krum: the updates closest to the others",
        lambda m, s: replace(m, aggregate=Krum(s.krum_malicious, s.krum_keep)),
    ),
    # How updates travel.
    "+structured": ("Structured Updates of low rank", lambda m, s: replace(m, compress=LowRank(s.structured_rank))),
    "+mask": ("Structured Updates by a random mask", lambda m, s: replace(m, compress=RandomMask(s.mask_share))),
    "+subsample": ("a random share of each update", lambda m, s: replace(m, compress=Subsample(s.subsample_share))),
    "+quantised": ("few bits a parameter, rotated", lambda m, s: replace(m, compress=Quantised(s.quantised_bits))),
    "+graddrop": (
        "the largest changes",
        lambda m, s: replace(m, compress=GradientDropping(s.drop_keep)),
    ),
    "+signsgd": (
        "signs only, majority vote",
        lambda m, s: replace(m, compress=SignSGD(), aggregate=MajorityVote(s.vote_step)),
    ),
    # What FedBalancer is without one of its parts.
    "+randomsamples": ("as many samples, at random", lambda m, s: replace(m, samples=RandomSamples())),
    "-samples": (
        "without sample selection",
        lambda m, s: replace(m, samples=EverySample(), threshold=NoThreshold()),
    ),
    "-deadline": ("without deadline control: T", lambda m, s: replace(m, deadline=FixedDeadline(1))),
    "-clients": ("without client selection", lambda m, s: replace(m, clients=Uniform())),
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
    known = {field.name for field in fields(Method)} - {"name"}
    for slot in {**named, **slots}:
        if slot not in known:
            raise UnknownName("slot", slot, known)
    made = replace(result, **{**named, **slots}, name=name)
    check_composition(made)
    return made


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
