"""Attacks on the control loop: clients that lie about their losses, their speed or their work."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from fedbalancer.core.types import ClientReport, Order, Summary


def check_positive(factor: float) -> None:
    """Refuse a factor that is not a finite number above 0."""
    if not 0 < factor < math.inf:
        raise ValueError(f"factor = {factor} must be a finite number > 0")


@dataclass(frozen=True)
class EpochsLiar:
    """Understates its training, so that the server computes a wrong speed.

    The client claims that its few batches took all the time that the server measured.

    Args:
        factor: Claimed epochs, as a multiple of the trained ones.
        samples: Claimed samples, as a share of the trained ones.
    """

    factor: float = 0.01
    samples: float = 1.0

    def __post_init__(self) -> None:
        if not (0 < self.factor < math.inf and 0 < self.samples <= 1):
            raise ValueError(f"factor = {self.factor} must be > 0, and samples = {self.samples} must be in (0, 1]")

    def falsify(self, report: ClientReport, order: Order) -> ClientReport:
        """Return the report with fewer epochs, fewer samples and slower batches."""
        epochs = min(report.epochs * self.factor, float(order.epochs))
        trained = max(int(report.summary.trained * self.samples), 1)
        batches = max(epochs * order.per_epoch(trained), 1.0)
        total_s = report.timings.total_s
        batch_s = total_s / batches if total_s > 0 else report.summary.batch_s / self.factor
        summary = replace(report.summary, trained=trained, batch_s=batch_s)
        return replace(report, epochs=epochs, weight=min(report.weight, float(trained)), summary=summary)


@dataclass(frozen=True)
class LatencyLiar:
    """Lies about its speed, to delay deadlines (or, with a factor below 1, to exclude others).

    Args:
        factor: Claimed seconds per batch, as a multiple of the true ones.
    """

    factor: float = 1e9

    def __post_init__(self) -> None:
        check_positive(self.factor)

    def falsify(self, report: ClientReport, order: Order) -> ClientReport:
        """Return the report with another batch latency."""
        summary = report.summary
        return replace(report, summary=replace(summary, batch_s=summary.batch_s * self.factor))


@dataclass(frozen=True)
class LossDrift:
    """Claims losses that grow a little in every round, so that no single claim is an outlier.

    Args:
        rate: Growth per round.
        most: Largest claim, as a multiple of the true losses.
    """

    rate: float = 0.05
    most: float = 10.0

    def __post_init__(self) -> None:
        check_positive(self.rate)
        check_positive(self.most)

    def falsify(self, report: ClientReport, order: Order) -> ClientReport:
        """Return the report with larger losses."""
        factor = min((1 + self.rate) ** min(order.round, 1000), self.most)
        return MetadataLiar(factor).falsify(report, order)


Field = Literal["all", "high", "low", "sum"]


@dataclass(frozen=True)
class MetadataLiar:
    """Lies about its losses, to move the loss threshold and the pace.

    If the client releases a histogram, it claims that all samples are in the last bin, or in the first one for a factor
    below 1. If it releases a fraction, it claims 1, or 0.

    Args:
        factor: Claimed losses, as a multiple of the true ones.
        field: The falsified statistic: "high", "low", "sum", or "all" for a consistent lie.
    """

    factor: float = 10.0
    field: Field = "all"

    def __post_init__(self) -> None:
        if not (0 <= self.factor < math.inf and self.field in get_args(Field)):
            raise ValueError(
                f"factor = {self.factor} must be >= 0, and field = {self.field!r} one of {', '.join(get_args(Field))}"
            )

    def falsify(self, report: ClientReport, order: Order) -> ClientReport:
        """Return the report with other losses."""
        summary = report.summary
        replaces_statistics = summary.released and not summary.loss_count
        lie = self._falsify_released(summary) if replaces_statistics else self._falsify_statistics(summary)
        return replace(report, summary=lie)

    def _falsify_statistics(self, summary: Summary) -> Summary:
        names = ("low", "high", "sum") if self.field == "all" else (self.field,)
        lies = {f"loss_{name}": getattr(summary, f"loss_{name}") * self.factor for name in names}
        if self.field == "all":
            lies["over_sumsq"] = summary.over_sumsq * self.factor * self.factor
        return replace(summary, **lies)

    def _falsify_released(self, summary: Summary) -> Summary:
        counts = summary.released
        if len(counts) == 1:  # the fraction of losses over the threshold
            return replace(summary, released=(float(self.factor >= 1),))
        rest = (0.0,) * (len(counts) - 1)
        total = (math.fsum(counts),)
        return replace(summary, released=(*rest, *total) if self.factor >= 1 else (*total, *rest))


@dataclass(frozen=True)
class OscillatingLatency:
    """Claims its true seconds per batch in odd rounds and a fraction of them in even rounds.

    Args:
        factor: The true seconds, as a multiple of the claimed ones.
    """

    factor: float = 10.0

    def __post_init__(self) -> None:
        check_positive(self.factor)

    def falsify(self, report: ClientReport, order: Order) -> ClientReport:
        """Return the report with another batch latency in even rounds."""
        return LatencyLiar(1 / self.factor).falsify(report, order) if order.round % 2 == 0 else report


@dataclass(frozen=True)
class UtilityLiar:
    """Lies about its squared losses, so that it is selected more often.

    Args:
        factor: Claimed squared losses, as a multiple of the true ones.
    """

    factor: float = 100.0

    def __post_init__(self) -> None:
        if not 0 <= self.factor < math.inf:
            raise ValueError(f"factor = {self.factor} must be a finite number >= 0")

    def falsify(self, report: ClientReport, order: Order) -> ClientReport:
        """Return the report with other squared losses."""
        summary = report.summary
        return replace(report, summary=replace(summary, over_sumsq=summary.over_sumsq * self.factor))


def claim_mean_loss(report: ClientReport, loss: float) -> ClientReport:
    """Return the report with losses scaled to a mean, so that they agree with each other.

    Args:
        report: The honest report.
        loss: The claimed mean loss.
    """
    mean = report.summary.loss_mean
    if not mean > 0:  # nothing to scale, or NaN because a summary of another form is released
        return report
    return replace(report, summary=MetadataLiar(loss / mean)._falsify_statistics(report.summary))
