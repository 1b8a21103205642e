"""Every composition of one choice per slot runs, or is refused before the run with a sentence that says why."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scaffold import Ditto

from fedbalancer.client.compress import (
    GradientDropping,
    LowRank,
    NoCompression,
    Quantised,
    RandomMask,
    SignSGD,
    Subsample,
)
from fedbalancer.client.parts import HeteroFL, LastLayers
from fedbalancer.client.samples import (
    ClassFloor,
    EverySample,
    HighestLoss,
    OverThreshold,
    OverThresholdBatch,
    RandomSamples,
    Trimmed,
)
from fedbalancer.client.summary import LossesBySteps, LossStatistics, Silent
from fedbalancer.client.training import FineTuning, LocalLayers, PlainTraining, WholeModel
from fedbalancer.client.work import AllOrNothing, ForecastBatches, WholeBatches, WholeEpochs
from fedbalancer.core.errors import BadSetting
from fedbalancer.data import load_task
from fedbalancer.experiments.simulation import build
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.methods.table import SLOTS, method
from fedbalancer.server.aggregate import (
    QFFL,
    CalibratedMean,
    CheckedUpdates,
    DelayAdaptive,
    ExtrapolatedMomentum,
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
    WeightedMean,
)
from fedbalancer.server.clients import (
    ByLoss,
    CappedParticipation,
    FedCS,
    GroupFloor,
    LeastSelected,
    Oort,
    Overcommitted,
    OverThresholdUtility,
    Pisces,
    PowerOfChoice,
    Uniform,
)
from fedbalancer.server.deadline import (
    BoundedStaleness,
    FirstReports,
    FixedDeadline,
    KthFastest,
    LearnedWork,
    LimitedDeadline,
    PeakDeadline,
    UsefulWork,
    WaitForShare,
)
from fedbalancer.server.late import Boosted, Buffered, Joins, Lost, Mixed, Timed
from fedbalancer.server.loop import rounds
from fedbalancer.server.model_average import AveragedModel, LastModel
from fedbalancer.server.pace import ConstantPace, MedianControl, ProgressControl, RatioControl
from fedbalancer.server.threshold import InterpolatedThreshold, NoThreshold, RecentThreshold

ROUNDS, USERS = 3, 12
TASK = load_task("synthetic", users=USERS)
CHOICES: dict[str, list[Any]] = {
    "clients": [
        Uniform(), OverThresholdUtility(), Oort(), PowerOfChoice(), FedCS(), ByLoss(), LeastSelected(),
        CappedParticipation(), GroupFloor(PowerOfChoice()), Overcommitted(), Pisces(),
    ],
    "samples": [
        EverySample(), HighestLoss(), OverThreshold(0.8), OverThresholdBatch(), RandomSamples(), Trimmed(0.8),
        ClassFloor(),
    ],
    "deadline": [
        FixedDeadline(1), PeakDeadline(gate=0.1), WaitForShare(0.8), FirstReports(), UsefulWork(), KthFastest(),
        LimitedDeadline(UsefulWork()), LearnedWork(), BoundedStaleness(),
    ],
    "work": [AllOrNothing(), WholeEpochs(), WholeBatches(), ForecastBatches()],
    "aggregate": [
        WeightedMean(), QFFL(), ServerMomentum(), FedAdam(), FedYogi(), FedAdagrad(), Median(), TrimmedMean(), Krum(),
        MajorityVote(), FedExP(), FedNova(), ExtrapolatedMomentum(),
        CheckedUpdates(ServerMomentum()), CalibratedMean(), DelayAdaptive(),
    ],
    "model_average": [LastModel(), AveragedModel()],
    "late": [Lost(), Joins(), Buffered(), Boosted(), Mixed(), Timed()],
    "threshold": [NoThreshold(), InterpolatedThreshold(), RecentThreshold()],
    "pace": [ConstantPace(), RatioControl(w=1), MedianControl(w=1), ProgressControl(w=1)],
    "summary": [LossStatistics(0.01), LossStatistics(utility_samples="all"), Silent(), LossesBySteps(0.01, "all")],
    "compress": [
        NoCompression(), LowRank(4), RandomMask(0.2), Subsample(0.2), Quantised(4), GradientDropping(), SignSGD(),
    ],
    "train": [PlainTraining(), FineTuning(), Ditto()],
    "part": [WholeModel(), LocalLayers("*bias"), HeteroFL(), LastLayers()],
    "mu": [0.0, 0.1],
    "forward_pass": ["first", "every"],
    "epoch_batches": [None, 1],
}  # fmt: skip
STEERED_BY_LOSSES = (
    OverThresholdUtility, CappedParticipation, GroupFloor, Oort, PowerOfChoice, ByLoss, QFFL, InterpolatedThreshold,
    RecentThreshold, RatioControl, MedianControl, ProgressControl, LearnedWork, Pisces,
)  # fmt: skip


ADAPTIVE = FedAdam | FedYogi | FedAdagrad


def must_be_refused(slots: dict[str, Any]) -> bool:
    """The five rules, said once more."""
    silent = isinstance(slots["summary"], Silent) and any(isinstance(v, STEERED_BY_LOSSES) for v in slots.values())
    other_samples = isinstance(slots["pace"], ProgressControl) and slots["summary"] == LossStatistics(0.01)
    unvoted = isinstance(slots["compress"], SignSGD) and not isinstance(slots["aggregate"], MajorityVote)
    untold = isinstance(slots["deadline"], LearnedWork) and not isinstance(slots["summary"], LossesBySteps)
    whole = isinstance(slots["part"], WholeModel)
    averages = isinstance(slots["aggregate"], WeightedMean | ServerMomentum | CheckedUpdates | ADAPTIVE)
    unaveraged = not whole and not (averages and isinstance(slots["compress"], NoCompression))
    return silent or other_samples or unvoted or untold or unaveraged


def covering(seed: int) -> Iterator[dict[str, Any]]:
    """Compositions in which every two choices of every two slots meet."""
    rng = random.Random(seed)
    left = {
        ((one, i), (other, j))
        for one, other in itertools.combinations(CHOICES, 2)
        for i in range(len(CHOICES[one]))
        for j in range(len(CHOICES[other]))
    }
    while left:
        picked = dict(min(left))
        for slot in rng.sample(list(CHOICES), len(CHOICES)):
            if slot not in picked:
                picked[slot] = max(
                    range(len(CHOICES[slot])), key=lambda i: (_gain(left, {**picked, slot: i}), rng.random())
                )
        left -= set(_pairs(picked))
        slots = {slot: CHOICES[slot][choice] for slot, choice in picked.items()}
        yield slots
        if must_be_refused(slots):  # its other choices meet as well
            yield {
                **slots, "summary": LossesBySteps(utility_samples="all"), "compress": NoCompression(),
                "part": WholeModel(),
            }  # fmt: skip


def _pairs(picked: dict[str, int]) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
    ordered = [(slot, picked[slot]) for slot in CHOICES if slot in picked]
    return itertools.combinations(ordered, 2)


def _gain(left: set[Any], picked: dict[str, int]) -> int:
    return sum(pair in left for pair in _pairs(picked))


def runs_or_is_refused(slots: dict[str, Any]) -> bool:
    """True if it ran to a finite model, False if it was refused with a sentence."""
    try:
        composed = method("fedavg+1t", name="composed", **slots)
    except BadSetting as refusal:
        sentence = str(refusal)
        if not must_be_refused(slots) or "cannot run: " not in sentence or len(sentence.split()) < 10:
            raise
        return False
    assert not must_be_refused(slots)
    spec = RunSpec(
        task="synthetic", method=composed, users=USERS, settings={"clients_per_round": 5, "epochs": 2}, rounds=ROUNDS
    )
    world = build(spec, TASK)
    state = world.server.init(world.executor.initial_weights(0))
    for after, _ in rounds(world.server, world.engine, state, lambda s: s.round >= ROUNDS):
        state = after
    assert np.isfinite(state.weights).all()
    assert state.round == ROUNDS
    assert state.clock_s > 0
    return True


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_every_slot_has_its_choices() -> None:
    assert set(SLOTS) <= set(CHOICES)


def test_every_two_choices_run_together_or_are_refused() -> None:
    compositions = list(covering(seed=0))
    outcomes = [runs_or_is_refused(slots) for slots in compositions]
    assert outcomes.count(True) >= 60
    assert outcomes.count(False) >= 10


@pytest.mark.soak
def test_two_thousand_compositions_run_or_are_refused() -> None:
    rng = random.Random(1)
    for _ in range(2000):
        runs_or_is_refused({slot: rng.choice(choices) for slot, choices in CHOICES.items()})
