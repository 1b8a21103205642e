"""Attacks on the model: harmful updates, sent alone or in collusion, and poisoned data.

The names are the literature's where there is one. Attackers that collude have full knowledge of the round
(`AttackView`), as the papers assume, and by default claim a constant loss, so that no rise of it reveals them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.randomness import stream
from fedbalancer.core.samples import IGNORED
from fedbalancer.core.task import Samples
from fedbalancer.core.types import ClientReport, FloatArray, Order
from fedbalancer.simulation.attacks.contract import AttackView, Collusion
from fedbalancer.simulation.attacks.reports import check_positive, claim_mean_loss

GUESSING = math.log(10)
"""The loss of a model that guesses among ten classes."""


def _send(report: ClientReport, update: NDArray[np.floating]) -> ClientReport:
    """Return the report with another update; values that overflow are infinite."""
    with np.errstate(over="ignore"):
        return replace(report, update=np.asarray(update).astype(np.float32))


def _norm(report: ClientReport) -> float:
    return float(np.linalg.norm(report.update.astype(np.float64)))


@dataclass(frozen=True)
class UpdateFlip:
    """Sends the negative of its update, which undoes what it has learned.

    Args:
        factor: Length of the sent update, as a multiple of the true one. With 100 it outweighs a cohort.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self.factor)

    def falsify(self, report: ClientReport, order: Order) -> ClientReport:
        """Return the report with the negative update."""
        with np.errstate(over="ignore"):
            return _send(report, report.update * -self.factor)


@dataclass(frozen=True)
class UpdateScale:
    """Sends an update that is far too long; values that overflow are infinite.

    Args:
        factor: Length of the sent update, as a multiple of the true one.
    """

    factor: float = 1e30

    def __post_init__(self) -> None:
        if not math.isfinite(self.factor):
            raise ValueError(f"factor = {self.factor} must be a finite number")

    def falsify(self, report: ClientReport, order: Order) -> ClientReport:
        """Return the report with the scaled update."""
        with np.errstate(over="ignore"):
            return _send(report, report.update * self.factor)


@dataclass(frozen=True)
class ModelAttack(Collusion):
    """Base of attacks that send harmful updates and lie about their losses.

    Args:
        loss: Claimed mean loss. None: the true one.
    """

    loss: float | None = field(default=GUESSING, kw_only=True)

    def collude(self, reports: Sequence[ClientReport], view: AttackView) -> list[ClientReport]:
        """Return the reports with harmful updates and the claimed loss."""
        with np.errstate(over="ignore"):
            updates = self.updates(reports, view)
        sent = [_send(report, update) for report, update in zip(reports, updates, strict=True)]
        return sent if self.loss is None else [claim_mean_loss(report, self.loss) for report in sent]

    @abstractmethod
    def updates(self, reports: Sequence[ClientReport], view: AttackView) -> Sequence[NDArray[np.floating]]:
        """Return the update that each attacker sends.

        Args:
            reports: The honest reports of the attackers.
            view: What they know.
        """


@dataclass(frozen=True)
class Flip(ModelAttack):
    """Sends the negative of its update after some rounds, or in some rounds, and is honest in the others.

    Args:
        factor: Length of the sent update, as a multiple of the true one.
        after: Number of honest rounds at the start, which earn trust.
        every: 1: attacks in all later rounds; 2: in every second one.
    """

    factor: float = 1.0
    after: int = 0
    every: int = 1

    def __post_init__(self) -> None:
        check_positive(self.factor)
        check_positive(self.every)

    def updates(self, reports: Sequence[ClientReport], view: AttackView) -> Sequence[NDArray[np.floating]]:
        """Return the negative updates, or the honest ones."""
        attacks = view.order.round > self.after and view.order.round % self.every == 0
        return [report.update * (-self.factor if attacks else 1.0) for report in reports]


@dataclass(frozen=True)
class Sleeper(Flip):
    """Is honest for some rounds, to earn trust, and then sends a long negative update.

    Args:
        factor: Length of the sent update, as a multiple of the true one.
        after: Number of honest rounds at the start.
    """

    factor: float = 3.0
    after: int = 15


@dataclass(frozen=True)
class Alternating(Flip):
    """Is honest in every other round, and sends a long negative update in between.

    Args:
        factor: Length of the sent update, as a multiple of the true one.
        every: Rounds from one attack to the next.
    """

    factor: float = 9.0
    every: int = 2


@dataclass(frozen=True)
class Silence(ModelAttack):
    """Sends an update of zeros."""

    def updates(self, reports: Sequence[ClientReport], view: AttackView) -> Sequence[NDArray[np.floating]]:
        """Return zeros."""
        return [np.zeros(len(view.weights)) for _ in reports]


@dataclass(frozen=True)
class StepReplay(ModelAttack):
    """Sends the last change of the global model again, so that it feeds back.

    Args:
        factor: The sent update, as a multiple of the last step. Below 0: it undoes the step.
    """

    factor: float = 2.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.factor):
            raise ValueError(f"factor = {self.factor} must be a finite number")

    def updates(self, reports: Sequence[ClientReport], view: AttackView) -> Sequence[NDArray[np.floating]]:
        """Return the last step, the same for all attackers."""
        return [self.factor * view.last_step.astype(np.float64)] * len(reports)


@dataclass(frozen=True)
class CommonDirection(ModelAttack):
    """All attackers push the model in one random direction in all rounds.

    Args:
        factor: Length of the sent update, as a multiple of the true one.
    """

    factor: float = 1.5

    def __post_init__(self) -> None:
        check_positive(self.factor)

    def updates(self, reports: Sequence[ClientReport], view: AttackView) -> Sequence[NDArray[np.floating]]:
        """Return the common direction, for each attacker as long as its own update times the factor."""
        drawn = stream(view.order.seed, "common direction").normal(size=len(view.weights))
        direction = drawn / max(float(np.linalg.norm(drawn)), 1e-30)
        return [self.factor * _norm(report) * direction for report in reports]


def _honest(reports: Sequence[ClientReport], view: AttackView) -> FloatArray:
    """Return the round's honest updates, or the attackers' true ones if there is no honest client."""
    return np.stack(list(view.honest) or [report.update for report in reports]).astype(np.float64)


@dataclass(frozen=True)
class LittleIsEnough(ModelAttack):
    """A little is enough: the honest mean minus some standard deviations, in every parameter.

    Baruch, Baruch and Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed Learning", NeurIPS 2019.
    The paper computes z from the number of clients; with two attackers among ten it is 0. Our default is larger.

    Args:
        z: Number of standard deviations.
    """

    z: float = 1.5

    def __post_init__(self) -> None:
        check_positive(self.z)

    def updates(self, reports: Sequence[ClientReport], view: AttackView) -> Sequence[NDArray[np.floating]]:
        """Return this update, the same for all attackers."""
        honest = _honest(reports, view)
        return [honest.mean(axis=0) - self.z * honest.std(axis=0)] * len(reports)


@dataclass(frozen=True)
class InnerProduct(ModelAttack):
    """Inner-product manipulation: a multiple of the negative honest mean.

    Xie, Koyejo and Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation", UAI 2019.

    Args:
        factor: Length of the sent update, as a multiple of the honest mean. The paper uses small and large values.
    """

    factor: float = 3.0

    def __post_init__(self) -> None:
        check_positive(self.factor)

    def updates(self, reports: Sequence[ClientReport], view: AttackView) -> Sequence[NDArray[np.floating]]:
        """Return this update, the same for all attackers."""
        return [-self.factor * _honest(reports, view).mean(axis=0)] * len(reports)


@dataclass(frozen=True)
class AgainstMedian(ModelAttack):
    """Values just beyond all honest ones, against the honest direction, in every parameter.

    Fang, Cao, Jia and Gong, "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning", USENIX Security
    2020, the attack on trimmed mean and median with full knowledge.

    Args:
        spread: b of the paper: how far beyond, at most.
    """

    spread: float = 2.0

    def __post_init__(self) -> None:
        if not 1 < self.spread < math.inf:
            raise ValueError(f"spread = {self.spread} must be a finite number > 1")

    def updates(self, reports: Sequence[ClientReport], view: AttackView) -> Sequence[NDArray[np.floating]]:
        """Return values drawn beyond the lowest or the highest honest one."""
        honest, order = _honest(reports, view), view.order
        rises = honest.mean(axis=0) > 0
        edge = np.where(rises, honest.min(axis=0), honest.max(axis=0))
        outwards = rises == (edge < 0)  # beyond means away from zero
        width = edge * np.where(outwards, self.spread, 1 / self.spread) - edge
        return [
            edge + stream(order.seed, "against median", order.round, report.client).random(len(edge)) * width
            for report in reports
        ]


@dataclass(frozen=True)
class LabelFlip:
    """Trains on flipped labels: class k of n becomes n - 1 - k.

    Its report is honest: an update of usual length, and high losses. Tolpegin et al., "Data Poisoning Attacks Against
    Federated Learning Systems", ESORICS 2020, flip one class into another; this attack flips all of them.
    """

    def poison(self, samples: Samples, classes: int) -> Samples:
        """Return the samples with flipped labels."""
        features, labels = samples
        old = np.asarray(labels)
        return features, np.where(old == IGNORED, old, classes - 1 - old).astype(old.dtype)

    def falsify(self, report: ClientReport, order: Order) -> ClientReport:
        """Return the report unchanged."""
        return report


@dataclass(frozen=True)
class TargetedFlip:
    """Trains on data in which one class is labelled as another, and reports honestly.

    Tolpegin et al., "Data Poisoning Attacks Against Federated Learning Systems", ESORICS 2020.

    Args:
        source: The class to unlearn.
        target: Its false label.
    """

    source: int = 3
    target: int = 6

    def poison(self, samples: Samples, classes: int) -> Samples:
        """Return the samples with the source class relabelled."""
        if not 0 <= max(self.source, self.target) < classes:
            raise BadSetting(f"attack targeted-flip: source and target must be below the task's {classes} classes")
        labels = np.asarray(samples[1])
        return samples[0], np.where(labels == self.source, self.target, labels).astype(labels.dtype)

    def victims(self, samples: Samples, classes: int) -> Samples:
        """Return the test samples of the source class."""
        chosen = np.flatnonzero(np.asarray(samples[1]) == self.source)
        return samples[0][chosen], samples[1][chosen]

    def falsify(self, report: ClientReport, order: Order) -> ClientReport:
        """Return the report unchanged."""
        return report


@dataclass(frozen=True)
class Backdoor:
    """Trains half of its samples with a trigger and the attacker's label, so that the trigger decides the answer.

    Gu, Dolan-Gavitt and Garg, "BadNets: Identifying Vulnerabilities in the Machine Learning Model Supply Chain", 2017;
    Bagdasaryan et al., "How To Backdoor Federated Learning", AISTATS 2020.

    Args:
        target: The label of samples with the trigger.
        size: Number of features that the trigger sets: the first ones of a sample.
        value: Their value.
        factor: Length of the sent update, as a multiple of the true one.
    """

    target: int = 0
    size: int = 3
    value: float = 5.0
    factor: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self.factor)

    def _trigger(self, features: FloatArray) -> FloatArray:
        if features.dtype.kind != "f":
            raise BadSetting("attack backdoor: the task's features are not numbers that a trigger could change")
        flat = features.reshape(len(features), -1).copy()
        flat[:, : self.size] = self.value
        return flat.reshape(features.shape)

    def poison(self, samples: Samples, classes: int) -> Samples:
        """Return the samples; every other one has the trigger and the target label."""
        features, labels = np.asarray(samples[0]).copy(), np.asarray(samples[1]).copy()
        features[::2], labels[::2] = self._trigger(features[::2]), self.target
        return features, labels

    def victims(self, samples: Samples, classes: int) -> Samples:
        """Return the test samples of other classes, with the trigger."""
        chosen = np.flatnonzero(np.asarray(samples[1]) != self.target)
        return self._trigger(np.asarray(samples[0])[chosen]), samples[1][chosen]

    def falsify(self, report: ClientReport, order: Order) -> ClientReport:
        """Return the report with the scaled update."""
        return report if self.factor == 1 else _send(report, report.update * self.factor)
