"""What a modifier of a name exchanges in a method: `+qffl`, `-deadline`. Reads like the second half of the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

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
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.settings import Settings
from fedbalancer.methods.composition import Method
from fedbalancer.methods.robust import robust
from fedbalancer.server.aggregate import (
    QFFL,
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
from fedbalancer.server.clients import FedCS, GroupFloor, PowerOfChoice, Uniform
from fedbalancer.server.deadline import FixedDeadline, LearnedWork
from fedbalancer.server.late import Joins, Lost
from fedbalancer.server.model_average import AveragedModel
from fedbalancer.server.threshold import NoThreshold


def _late(m: Method, s: Settings) -> Method:
    if m.late != Lost():
        raise BadSetting(f"method '{m.name}+late': {type(m.late).__name__} counts late reports anyway")
    return m.with_policies(late=Joins())


def _trimmed(m: Method, s: Settings) -> Method:
    return m.with_policies(samples=Trimmed(_share_over(m, "+trimmed")))


def _class_floor(m: Method, s: Settings) -> Method:
    return m.with_policies(samples=ClassFloor(_share_over(m, "+classfloor")))


def _share_over(m: Method, modifier: str) -> float:
    """The p of Algorithm 1, of which every sample is the case of a threshold of zero."""
    if type(m.samples) not in (EverySample, OverThreshold):
        raise BadSetting(f"method '{m.name}{modifier}': {type(m.samples).__name__} selects by a rule of its own")
    return float(m.samples.p) if isinstance(m.samples, OverThreshold) else 1.0


def _forecast(m: Method, s: Settings) -> Method:
    forecasting = {WholeBatches: ForecastBatches, WholeEpochs: ForecastEpochs}.get(type(m.work))
    if forecasting is None:
        raise BadSetting(f"method '{m.name}+forecast': {type(m.work).__name__} does the same whatever is forecast")
    return m.with_policies(work=forecasting())


def _learned(m: Method, s: Settings) -> Method:
    if type(m.summary) is not LossStatistics:
        raise BadSetting(f"method '{m.name}+learned': {type(m.summary).__name__} tells nothing of single steps")
    return m.with_policies(deadline=LearnedWork(), summary=LossesBySteps(**asdict(m.summary)))


LAST = "+robust"
Modifier = Callable[[Method, Settings], Method]

MODIFIERS: dict[str, tuple[str, Modifier]] = {
    # How much a client does, and what it knows of its losses.
    "+batches": ("clients stop after the batches that fit", lambda m, s: m.with_policies(work=WholeBatches())),
    "+forecast": ("clients forecast their upload in place of knowing it", _forecast),
    "+forwardpass": ("a fresh forward pass every round", lambda m, s: m.with_policies(forward_pass="every")),
    "+trimmed": ("without samples whose labels seem wrong", _trimmed),
    "+classfloor": ("no class of a client is left out", _class_floor),
    "+silent": ("clients release nothing about their losses", lambda m, s: m.with_policies(summary=Silent())),
    # Who takes part.
    "+powerofchoice": (
        "clients of high loss among some drawn by size",
        lambda m, s: m.with_policies(clients=PowerOfChoice(s.candidates)),
    ),
    "+fedcs": ("as many fast clients as fit", lambda m, s: m.with_policies(clients=FedCS(s.candidates))),
    "+learned": ("deadlines by useful work, whose worth is learned while training", _learned),
    "+groupfloor": ("no speed of devices is left out", lambda m, s: m.with_policies(clients=GroupFloor(m.clients))),
    "+late": ("a late report joins the round in which it comes", _late),
    # How updates become a model.
    "+qffl": ("q-FFL: high losses count for more", lambda m, s: m.with_policies(aggregate=QFFL(s.qffl_q))),
    "+momentum": (
        "momentum on the server",
        lambda m, s: m.with_policies(aggregate=ServerMomentum(s.server_momentum, s.server_momentum_eta)),
    ),
    "+fedadam": (
        "Adam on the server",
        lambda m, s: m.with_policies(aggregate=FedAdam(s.server_eta, s.server_beta_1, s.server_beta_2, s.server_tau)),
    ),
    "+fedyogi": (
        "Yogi on the server",
        lambda m, s: m.with_policies(aggregate=FedYogi(s.server_eta, s.server_beta_1, s.server_beta_2, s.server_tau)),
    ),
    "+fedadagrad": (
        "Adagrad on the server",
        lambda m, s: m.with_policies(aggregate=FedAdagrad(s.server_eta, s.server_tau)),
    ),
    "+fedexp": ("FedExP: longer steps where clients disagree", lambda m, s: m.with_policies(aggregate=FedExP())),
    "+fednova": ("FedNova: updates count per step behind them", lambda m, s: m.with_policies(aggregate=FedNova())),
    "+averaged": (
        "the average of the last models is handed out",
        lambda m, s: m.with_policies(model_average=AveragedModel()),
    ),
    "+median": ("the median of every parameter", lambda m, s: m.with_policies(aggregate=Median())),
    "+trimmedmean": ("the mean without extremes", lambda m, s: m.with_policies(aggregate=TrimmedMean(s.trim_share))),
    "+krum": (
        "Krum: the updates closest to the others",
        lambda m, s: m.with_policies(aggregate=Krum(s.krum_malicious, s.krum_keep)),
    ),
    # What liars can do: applied after all others.
    LAST: ("liar-proof: medians, limits and clipped updates (docs/benchmarks/reliability.md)", lambda m, s: robust(m)),
    # How updates travel.
    "+structured": (
        "Structured Updates of low rank",
        lambda m, s: m.with_policies(compress=LowRank(s.structured_rank)),
    ),
    "+mask": ("Structured Updates by a random mask", lambda m, s: m.with_policies(compress=RandomMask(s.mask_share))),
    "+subsample": (
        "a random share of each update",
        lambda m, s: m.with_policies(compress=Subsample(s.subsample_share)),
    ),
    "+quantised": (
        "few bits per parameter, rotated",
        lambda m, s: m.with_policies(compress=Quantised(s.quantised_bits)),
    ),
    "+graddrop": (
        "the largest changes",
        lambda m, s: m.with_policies(compress=GradientDropping(s.drop_keep)),
    ),
    "+signsgd": (
        "signs only, majority vote",
        lambda m, s: m.with_policies(compress=SignSGD(), aggregate=MajorityVote(s.vote_step)),
    ),
    # What FedBalancer is without one of its parts.
    "+randomsamples": ("as many samples, at random", lambda m, s: m.with_policies(samples=RandomSamples())),
    "-samples": (
        "without sample selection",
        lambda m, s: m.with_policies(samples=EverySample(), threshold=NoThreshold()),
    ),
    "-deadline": ("without deadline control: T", lambda m, s: m.with_policies(deadline=FixedDeadline(1))),
    "-clients": ("without client selection", lambda m, s: m.with_policies(clients=Uniform())),
}
