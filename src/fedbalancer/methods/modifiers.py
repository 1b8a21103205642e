"""Modifiers of method names: `+qffl`, `-deadline`. Each replaces some policies of a method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fedbalancer.client.compress import (
    GradientDropping,
    LowRank,
    Quantised,
    RandomMask,
    SignSGD,
    Subsample,
)
from fedbalancer.client.samples import ClassFloor, EverySample, OverThreshold, RandomSamples, Trimmed
from fedbalancer.client.summary import LossesBySteps, LossStatistics, Silent
from fedbalancer.client.work import ForecastBatches, ForecastEpochs, WholeBatches, WholeEpochs
from fedbalancer.core.contracts import Summarizer
from fedbalancer.core.errors import BadSetting
from fedbalancer.methods.composition import Method
from fedbalancer.server.aggregate import (
    QFFL,
    AutoRate,
    CheckedUpdates,
    FedAdagrad,
    FedAdam,
    FedExP,
    FedNova,
    FedYogi,
    Krum,
    MajorityVote,
    Median,
    ServerMomentum,
    TrimmedMean,
)
from fedbalancer.server.clients import CappedParticipation, FedCS, GroupFloor, PowerOfChoice, Uniform
from fedbalancer.server.deadline import FixedDeadline, LearnedWork, LimitedDeadline, PeakDeadline, UsefulWork
from fedbalancer.server.late import Joins, Lost
from fedbalancer.server.model_average import AveragedModel
from fedbalancer.server.pace import MedianControl, RatioControl
from fedbalancer.server.threshold import InterpolatedThreshold, NoThreshold, RecentThreshold


def _late(m: Method) -> Method:
    if m.late != Lost():
        raise BadSetting(f"method '{m.name}+late': {type(m.late).__name__} already counts late reports")
    return m.with_policies(late=Joins())


def _trimmed(m: Method) -> Method:
    return m.with_policies(samples=Trimmed(_share_over(m, "+trimmed")))


def _class_floor(m: Method) -> Method:
    return m.with_policies(samples=ClassFloor(_share_over(m, "+classfloor")))


def _share_over(m: Method, modifier: str) -> float:
    """Return p of Algorithm 1; `EverySample` is the case of a threshold of 0."""
    if type(m.samples) not in (EverySample, OverThreshold):
        raise BadSetting(f"method '{m.name}{modifier}': {type(m.samples).__name__} selects samples by another rule")
    return float(m.samples.p) if isinstance(m.samples, OverThreshold) else 1.0


def _forecast(m: Method) -> Method:
    forecasting = {WholeBatches: ForecastBatches, WholeEpochs: ForecastEpochs}.get(type(m.work))
    if forecasting is None:
        raise BadSetting(f"method '{m.name}+forecast': {type(m.work).__name__} does not depend on a forecast")
    return m.with_policies(work=forecasting())


def _learned(m: Method) -> Method:
    if type(m.summary) not in (LossStatistics, LossesBySteps):
        raise BadSetting(f"method '{m.name}+learned': {type(m.summary).__name__} reports nothing about single steps")
    return m.with_policies(deadline=LearnedWork(), summary=_by_steps(m.summary))


def _by_steps(summary: Summarizer) -> Summarizer:
    """Return the summary with losses by steps, if it releases plain statistics."""
    return LossesBySteps(**asdict(summary)) if type(summary) is LossStatistics else summary


def _auto_rate(m: Method) -> Method:
    """Return the method with a searched learning rate. Without losses by steps, updates alone decide."""
    if isinstance(m.aggregate, AutoRate):
        raise BadSetting(f"method '{m.name}' has +auto or +autorate twice; both find the learning rate")
    return m.with_policies(aggregate=AutoRate(m.aggregate), summary=_by_steps(m.summary))


AUTO_BITS = 4
"""Bits per value with `+auto`: its bound on the time is within 5% of the best for every link (docs/methods/auto.md)."""


def _auto(m: Method) -> Method:
    """Return the method with a searched learning rate and updates of few bits, unless it compresses them already."""
    compress = Quantised(AUTO_BITS) if m.compress.is_identity else m.compress
    return _auto_rate(m.with_policies(compress=compress))


STEERED = (LearnedWork, PeakDeadline, UsefulWork)
"""Deadlines that depend on the speed that clients report."""


def robust(method: Method) -> Method:
    """Return the method with robust policies where its own trust the clients.

    Medians for loss threshold and pace, a floor and a rate limit for the deadline, a cap on participation, and checked
    updates. Policies that need no protection stay.

    Args:
        method: The method to protect.
    """
    return method.with_policies(
        clients=_robust_clients(method.clients),
        deadline=LimitedDeadline(method.deadline) if isinstance(method.deadline, STEERED) else method.deadline,
        threshold=RecentThreshold() if isinstance(method.threshold, InterpolatedThreshold) else method.threshold,
        pace=_robust_pace(method.pace),
        aggregate=_robust_aggregate(method.aggregate),
    )


def _robust_clients(policy: Any) -> Any:
    return policy if isinstance(policy, Uniform | CappedParticipation) else CappedParticipation(policy)


def _robust_pace(policy: Any) -> Any:
    return MedianControl(policy.w, policy.lss, policy.dss) if isinstance(policy, RatioControl) else policy


def _robust_aggregate(policy: Any) -> Any:
    """Return a robust aggregator. Votes, and clipping by a fixed bound (central privacy), stay as they are."""
    safe = policy.counts_votes or policy.model_noise_multiplier is not None
    return policy if safe or isinstance(policy, CheckedUpdates) else CheckedUpdates(policy)


LAST = "+robust"
"""The modifier that is applied after all others."""
WRAPPING = ("+autorate", "+auto", LAST)
"""The modifiers that wrap what others choose. They are applied after all others, in this order."""
Modifier = Callable[[Method], Method]

MODIFIERS: dict[str, tuple[str, Modifier]] = {
    # Work, samples and reports of a client.
    "+batches": (
        "clients train as many batches as fit, not whole epochs",
        lambda m: m.with_policies(work=WholeBatches()),
    ),
    "+forecast": ("clients forecast their upload time instead of knowing it", _forecast),
    "+forwardpass": ("a forward pass over all samples in every round", lambda m: m.with_policies(forward_pass="every")),
    "+trimmed": ("drops samples whose labels are probably wrong", _trimmed),
    "+classfloor": ("every class of a client is selected", _class_floor),
    "+silent": ("clients release nothing about their losses", lambda m: m.with_policies(summary=Silent())),
    # Client selection, deadline, late reports.
    "+powerofchoice": (
        "power-of-choice: highest losses among candidates drawn by size",
        lambda m: m.with_policies(clients=PowerOfChoice()),
    ),
    "+fedcs": ("FedCS: the fastest of the candidates", lambda m: m.with_policies(clients=FedCS())),
    "+learned": ("deadlines by useful work, learned during training", _learned),
    "+groupfloor": (
        "every group of device speeds is selected",
        lambda m: m.with_policies(clients=GroupFloor(m.clients)),
    ),
    "+late": ("a late report counts in the round in which it arrives", _late),
    # Aggregation.
    "+qffl": ("q-FFL: clients with high losses weigh more", lambda m: m.with_policies(aggregate=QFFL())),
    "+momentum": (
        "momentum on the server",
        lambda m: m.with_policies(aggregate=ServerMomentum()),
    ),
    "+fedadam": (
        "Adam on the server",
        lambda m: m.with_policies(aggregate=FedAdam()),
    ),
    "+fedyogi": (
        "Yogi on the server",
        lambda m: m.with_policies(aggregate=FedYogi()),
    ),
    "+fedadagrad": (
        "Adagrad on the server",
        lambda m: m.with_policies(aggregate=FedAdagrad()),
    ),
    "+fedexp": ("FedExP: longer steps where clients disagree", lambda m: m.with_policies(aggregate=FedExP())),
    "+fednova": ("FedNova: updates are normalised by local steps", lambda m: m.with_policies(aggregate=FedNova())),
    "+averaged": (
        "returns the average of the last models",
        lambda m: m.with_policies(model_average=AveragedModel()),
    ),
    "+median": ("the median of every parameter", lambda m: m.with_policies(aggregate=Median())),
    "+trimmedmean": ("the mean without extremes", lambda m: m.with_policies(aggregate=TrimmedMean())),
    "+krum": (
        "Krum: the updates closest to the others",
        lambda m: m.with_policies(aggregate=Krum()),
    ),
    # Around the others.
    "+autorate": ("the clients' learning rate is found while training", _auto_rate),
    "+auto": ("the learning rate is found while training, and updates have few bits", _auto),
    LAST: ("withstands a few liars: medians, limits, clipped updates", robust),
    # Compression of updates.
    "+structured": (
        "Structured Updates of low rank",
        lambda m: m.with_policies(compress=LowRank()),
    ),
    "+mask": ("Structured Updates by a random mask", lambda m: m.with_policies(compress=RandomMask())),
    "+subsample": (
        "a random share of each update",
        lambda m: m.with_policies(compress=Subsample()),
    ),
    "+quantised": (
        "few bits per parameter, rotated",
        lambda m: m.with_policies(compress=Quantised()),
    ),
    "+graddrop": (
        "gradient dropping: only the largest changes",
        lambda m: m.with_policies(compress=GradientDropping()),
    ),
    "+signsgd": (
        "sign-SGD: signs only, majority vote",
        lambda m: m.with_policies(compress=SignSGD(), aggregate=MajorityVote()),
    ),
    # Ablations.
    "+randomsamples": (
        "the same number of samples, drawn at random",
        lambda m: m.with_policies(samples=RandomSamples()),
    ),
    "-samples": (
        "without sample selection",
        lambda m: m.with_policies(samples=EverySample(), threshold=NoThreshold()),
    ),
    "-deadline": ("without deadline control: T", lambda m: m.with_policies(deadline=FixedDeadline(1))),
    "-clients": ("without client selection", lambda m: m.with_policies(clients=Uniform())),
}
"""Every modifier: its title, and the function that applies it."""
