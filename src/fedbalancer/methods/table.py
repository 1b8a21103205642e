"""Each named method as a composition of slots. This file reads like the table of methods.

A name is a base, any modifiers, and settings of its own in brackets: `fedavg+1t`, `fedbalancer`, `fedbalancer+qffl`,
`fedbalancer-deadline`, `fedbalancer[w=5,p=.75]`, `fedavg[deadline=.5T]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedbalancer.client.samples import HighestLoss, OverThreshold, OverThresholdBatch
from fedbalancer.client.summary import LossStatistics
from fedbalancer.client.work import WholeBatches, WholeEpochs
from fedbalancer.core.contracts import SLOTS, DeadlinePolicy
from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.settings import Settings, resolve
from fedbalancer.methods.composition import Method, setup_of
from fedbalancer.methods.modifiers import LAST, MODIFIERS
from fedbalancer.methods.names import check_name, parse_method_name, with_choices
from fedbalancer.methods.policy_registry import policy
from fedbalancer.methods.slots import check_composition, checked, load_policy
from fedbalancer.server.aggregate import ExtrapolatedMomentum
from fedbalancer.server.clients import ByLoss, LeastSelected, Oort, OverThresholdUtility
from fedbalancer.server.deadline import FirstReports, FixedDeadline, KthFastest, PeakDeadline, UsefulWork, WaitForShare
from fedbalancer.server.late import Boosted, Buffered
from fedbalancer.server.model_average import AveragedModel
from fedbalancer.server.pace import RatioControl
from fedbalancer.server.threshold import InterpolatedThreshold

__all__ = ["BASES", "FAMILIES", "MODIFIERS", "SLOTS", "Method", "load_policy", "method", "setup_of"]


class Undecided(WaitForShare):
    """The deadline of a base that leaves it to the brackets."""

    def refuses(self, method: Method) -> str:
        return "it has no deadline; name one, as in fedavg+1t, fedavg[deadline=.5T], or fedavg+wfa, which waits for all"


def _fedavg(name: str, deadline: DeadlinePolicy, s: Settings) -> Method:
    return Method(name).with_policies(deadline=deadline, summary=_summary(s))


def _prox(name: str, deadline: DeadlinePolicy, s: Settings) -> Method:
    return _fedavg(name, deadline, s).with_policies(work=WholeEpochs(), mu=s.prox_mu)


def _sample_selection(s: Settings) -> Method:
    return _prox("sampleselection", FixedDeadline(s.sample_selection_deadline), s).with_policies(samples=HighestLoss())


def _fedbalancer(s: Settings) -> Method:
    return Method("fedbalancer").with_policies(
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


def _canter(s: Settings) -> Method:
    """FedBalancer's samples and threshold; all else is ours. What its parts do is in docs/methods/canter.md."""
    return _fedbalancer(s).with_policies(
        clients=ByLoss(),
        deadline=UsefulWork(),
        samples=OverThreshold(CANTER_SHARE),
        work=WholeBatches(),
        pace=RatioControl(CANTER_WINDOW, s.lss, s.dss),
        aggregate=ExtrapolatedMomentum(),
        model_average=AveragedModel(),
    )


CANTER_WINDOW = 5
"""Rounds between the looks of canter's threshold control: its rounds are short."""
CANTER_SHARE = 0.75
"""Of the samples that canter takes, so many are over the threshold (p). With all of them, as on the paper's tasks, a
model that has come far forgets the others, whose losses nobody looks at any more."""


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
    return Method("oort").with_policies(
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
    return _fedbalancer(s).with_policies(clients=clients, samples=OverThresholdBatch(s.p), epoch_batches=1)


def _fedbuff(s: Settings) -> Method:
    return _fedavg("fedbuff", WaitForShare(), s).with_policies(late=Buffered())


def _timelyfl(s: Settings) -> Method:
    return _fedavg("timelyfl", KthFastest(), s).with_policies(work=WholeBatches())


def _refl(s: Settings) -> Method:
    return _fedavg("refl", WaitForShare(0.8), s).with_policies(clients=LeastSelected(), late=Boosted())


def _summary(s: Settings) -> LossStatistics:
    return LossStatistics(s.noise_factor, s.utility_samples)


BASES: dict[str, tuple[str, Callable[[Settings], Method]]] = {
    "fedavg+1t": ("FedAvg, fixed deadline T", lambda s: _fedavg("fedavg+1t", FixedDeadline(1), s)),
    "fedavg+2t": ("FedAvg, fixed deadline 2 T", lambda s: _fedavg("fedavg+2t", FixedDeadline(2), s)),
    "fedavg+spc": ("FedAvg, SmartPC: 80 % report", lambda s: _fedavg("fedavg+spc", WaitForShare(s.smartpc_share), s)),
    "fedavg+wfa": ("FedAvg, waits for all", lambda s: _fedavg("fedavg+wfa", WaitForShare(), s)),
    "prox+1t": ("Prox, partial epochs, deadline T", lambda s: _prox("prox+1t", FixedDeadline(1), s)),
    "prox+2t": ("Prox, partial epochs, deadline 2 T", lambda s: _prox("prox+2t", FixedDeadline(2), s)),
    "sampleselection": ("highest losses, big clients cut at P80", _sample_selection),
    "oort": ("Oort: clients by utility and speed, one batch an epoch", _oort),
    "fedbalancer": ("sample selection and adaptive deadlines", _fedbalancer),
    "canter": ("ours: short rounds by useful work, momentum, averaged", _canter),
    "oortbalancer": ("FedBalancer on Oort's one batch an epoch", _oortbalancer),
    "timelyfl": ("TimelyFL: work that fits the k-th fastest client's epoch", _timelyfl),
    "refl": ("REFL: stale reports count, seldom selected clients first", _refl),
    "fedbuff": ("FedBuff: a step whenever enough reports have come, late or not", _fedbuff),
}

FAMILIES: dict[str, tuple[str, Callable[[Settings], Method]]] = {
    "fedavg": ("FedAvg with the deadline that is named: fedavg[deadline=.5T]", lambda s: _fedavg("", Undecided(), s)),
    "prox": ("Prox with the deadline that is named: prox[deadline=.5T]", lambda s: _prox("", Undecided(), s)),
}
"""Bases that are no method before they have a deadline."""


def method(base: str, settings: Settings | None = None, *, name: str | None = None, **slots: Any) -> Method:
    """A named method; any slot may be replaced. Settings in the brackets of the name go over those given.

    A method with other choices than its own says so in its name, or is called `name` in tables and folders.

    >>> method("fedavg+1t", deadline=FixedDeadline(1.5)).name
    'fedavg+1t[deadline=FixedDeadline(multiple=1.5)]'
    >>> method("fedbalancer[p=0.75, w=5]").name, method("fedbalancer", clients=ByLoss(), name="mine").name
    ('fedbalancer[w=5,p=.75]', 'mine')
    """
    spelling = parse_method_name(base)
    settings = resolve(settings.model_dump() if settings is not None else {}, spelling.layer)
    composed = _composed(spelling.stem, settings)
    named = {slot: policy(slot, text) for slot, text in settings.slots.items()}
    given = {slot: _checked(slot, choice) for slot, choice in slots.items()}
    called = with_choices(spelling, given) if name is None else _free(name)
    composed = replace(composed.with_policies(**{**named, **given}), name=called, settings=spelling.layer)
    check_composition(composed)
    return composed


def _checked(slot: str, choice: Any) -> Any:
    """What a user puts into a slot, if it fits; the method's other choices, such as mu, are plain values."""
    return checked(slot, getattr(choice, "__name__", type(choice).__name__), choice) if slot in SLOTS else choice


def _free(name: str) -> str:
    """A name that no other method has."""
    check_name(name)
    if name in BASES:
        raise BadSetting(f"name={name!r} is that of a method of its own; choose another, as in name='mine'")
    return name


def _composed(stem: str, settings: Settings) -> Method:
    """A base with its modifiers."""
    base, modifiers = _parted(stem)
    composed = {**FAMILIES, **BASES}[base][1](settings)
    result = replace(composed, name=base)  # by which a modifier that refuses it calls it
    for modifier in sorted(modifiers, key=lambda each: each == LAST):
        before, result = result, MODIFIERS[modifier][1](result, settings)
        if modifier.startswith("-") and result == before:
            raise BadSetting(f"method {stem!r}: {base} is {MODIFIERS[modifier][0].partition(':')[0]} anyway")
    return result


def check_known(name: str) -> None:
    """An error if there is no such base or modifier; policies in brackets may be found only when the task is loaded."""
    _parted(parse_method_name(name).stem)


def _parted(stem: str) -> tuple[str, list[str]]:
    """A base and its modifiers."""
    bases = {**FAMILIES, **BASES}
    base = next((known for known in sorted(bases, key=len, reverse=True) if _starts(stem, known)), None)
    if base is None:
        raise UnknownName("method", stem, bases)
    return base, _modifiers(base, stem)


def _starts(name: str, base: str) -> bool:
    return name == base or (name.startswith(base) and name[len(base)] in "+-")


def _modifiers(base: str, stem: str) -> list[str]:
    found: list[str] = []
    rest = stem[len(base) :]
    while rest:
        modifier = next((known for known in sorted(MODIFIERS, key=len, reverse=True) if _starts(rest, known)), None)
        if modifier is None and base in FAMILIES:  # fedavg+3t is no fedavg with a modifier
            raise UnknownName("method", stem, BASES)
        if modifier is None:
            raise UnknownName(f"modifier in method {stem!r}:", rest, MODIFIERS)
        found.append(modifier)
        rest = rest[len(modifier) :]
    return found
