"""Each named method as a composition of slots. This file reads like the table of methods.

A name is a base and any modifiers: `fedavg+1t`, `fedbalancer`, `fedbalancer+batches`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from fedbalancer.client.compress import NoCompression
from fedbalancer.client.samples import EverySample, HighestLoss, OverThreshold
from fedbalancer.client.summary import LossStatistics
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
from fedbalancer.server.aggregate import WeightedMean
from fedbalancer.server.clients import OverThresholdUtility, Uniform
from fedbalancer.server.deadline import FixedDeadline, PeakDeadline, Quorum
from fedbalancer.server.pace import ConstantPace, RatioControl
from fedbalancer.server.threshold import InterpolatedThreshold, NoThreshold
from fedbalancer.settings import Settings


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


SLOTS: dict[str, type] = {
    "clients": ClientSelector,
    "samples": SampleSelector,
    "deadline": DeadlinePolicy,
    "work": Work,
    "aggregate": Aggregator,
    "threshold": ThresholdPolicy,
    "pace": PacePolicy,
    "summary": Summarizer,
    "compress": Compressor,
}


def _fedavg(name: str, deadline: DeadlinePolicy, s: Settings) -> Method:
    return Method(name, deadline=deadline, summary=_summary(s))


def _prox(name: str, multiple: float, s: Settings) -> Method:
    return Method(name, deadline=FixedDeadline(multiple), work=WholeEpochs(), mu=s.prox_mu, summary=_summary(s))


def _sample_selection(s: Settings) -> Method:
    return replace(_prox("sampleselection", s.sample_selection_deadline, s), samples=HighestLoss())


def _fedbalancer(s: Settings) -> Method:
    return Method(
        "fedbalancer",
        clients=OverThresholdUtility(
            alpha=s.alpha,
            exploration=s.exploration,
            exploration_decay=s.exploration_decay,
            exploration_min=s.exploration_min,
            clip=s.utility_clip,
            cutoff=s.utility_cutoff,
            normalise=s.normalise_utility,
        ),
        samples=OverThreshold(s.p),
        deadline=PeakDeadline(s.deadline_counts, s.deadline_grid, s.deadline_gate, s.deadline_gate_clients, s.guard_s),
        work=WholeEpochs(),
        threshold=InterpolatedThreshold(s.loss_history),
        pace=RatioControl(s.w, s.lss, s.dss),
        summary=_summary(s),
        mu=s.fedbalancer_mu,
        forward_pass=s.forward_pass,
    )


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
    "fedbalancer": ("sample selection and adaptive deadlines", _fedbalancer),
}

MODIFIERS: dict[str, tuple[str, Callable[[Method], Method]]] = {
    "+batches": ("clients stop after the batches that fit", lambda m: replace(m, work=WholeBatches())),
    "+forwardpass": ("a fresh forward pass every round", lambda m: replace(m, forward_pass="every")),
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
        result = MODIFIERS[modifier][1](result)
    named = {slot: load_policy(slot, path) for slot, path in settings.slots.items()}
    known = {field.name for field in fields(Method)} - {"name"}
    for slot in {**named, **slots}:
        if slot not in known:
            raise UnknownName("slot", slot, known)
    return replace(result, **{**named, **slots}, name=name)


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


def load_policy(slot: str, path: str) -> Any:
    """An own policy named as `package.module:Class`, made without arguments and checked for its slot's methods."""
    if slot not in SLOTS:
        raise UnknownName("slot", slot, SLOTS)
    module_name, colon, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute) if colon else None
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise BadSetting(f"slots.{slot} = {path!r}: {error}") from error
    if found is None:
        raise BadSetting(f"slots.{slot} = {path!r} must look like package.module:Class")
    try:
        policy = found() if inspect.isclass(found) else found
    except TypeError as error:
        raise BadSetting(f"slots.{slot} = {path!r} cannot be made without arguments: {error}") from error
    if not isinstance(policy, SLOTS[slot]):
        needed = sorted(name for name in dir(SLOTS[slot]) if not name.startswith("_"))
        raise BadSetting(f"slots.{slot} = {path!r} is no policy for that slot; it needs {', '.join(needed)}")
    return policy
