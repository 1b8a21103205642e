"""The cost of a training batch, by which measured seconds are scaled to other models and batch sizes.

The paper's seconds per batch were measured with its own models and batch sizes. A batch of another model or size takes

    seconds = measured seconds x (F / F0) x (FIXED_SHARE + (1 - FIXED_SHARE) x B / B0)

where F is the number of floating-point operations per sample of a training step, B the batch size, and F0 and B0 are
those of the measurement. At the published settings the factor is exactly 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import FORWARD_PASS_EPOCHS, FloatArray, IndexArray, batches_per_epoch

FIXED_SHARE = 0.1
"""Share of a measured batch that does not depend on the batch size, such as the update of the weights.

The published rows hardly determine it. Only the two LSTMs differ in batch size, and they give 0.42 (slow), 0.18 (mid)
and -0.16 (fast). A value below their mean of 0.14 is conservative: a larger batch saves at most a tenth per sample.
"""
LEAST_FLOPS = 0.01
"""Smallest ratio of FLOPs. A training step has overheads that FLOPs do not show, so no model is cheaper."""


@dataclass(frozen=True)
class BatchCost:
    """Work of one training batch.

    Only ratios of costs matter, so a cost may be in another unit than FLOPs if its reference is in the same.

    Args:
        train_flops: Floating-point operations per sample of a training step, forward and backward.
        forward_flops: Floating-point operations per sample of a forward pass.
        batch_size: Samples per batch.

    Raises:
        BadSetting: If a value is negative or not finite, or the batch is empty.

    >>> small = BatchCost(train_flops=3e6, forward_flops=1e6, batch_size=10)
    >>> small.factor(small), round(replace(small, batch_size=100).factor(small), 6)
    (1.0, 9.1)
    """

    train_flops: float
    forward_flops: float
    batch_size: int

    def __post_init__(self) -> None:
        for name in ("train_flops", "forward_flops"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise BadSetting(f"{name} = {value!r} must be a finite number of operations per sample, at least 0")
        if self.batch_size < 1:
            raise BadSetting(f"batch_size = {self.batch_size!r} must be at least 1")

    def factor(self, reference: BatchCost) -> float:
        """Return the seconds of this batch as a multiple of the seconds of a measured batch.

        Args:
            reference: Cost of the measured batch.

        Raises:
            BadSetting: If the reference has no FLOPs.
        """
        if not reference.train_flops:
            raise BadSetting("the measured batch has no FLOPs, so no other batch can be compared with it")
        flops = max(self.train_flops / reference.train_flops, LEAST_FLOPS)
        return flops * _size_factor(self.batch_size, reference.batch_size)

    @property
    def forward_epochs(self) -> float:
        """Duration of a forward pass over all samples, in training epochs, by the ratio of the FLOPs."""
        return self.forward_flops / self.train_flops if self.train_flops else FORWARD_PASS_EPOCHS


def _size_factor(batch_size: float, reference_size: int) -> float:
    return 1 + (1 - FIXED_SHARE) * (batch_size / reference_size - 1)  # exactly 1 for the same size


PUBLISHED: Mapping[str, BatchCost] = {
    "femnist": BatchCost(102_017_024, 34_423_808, batch_size=10),
    "celeba": BatchCost(153_017_856, 55_070_208, batch_size=10),
    "reddit": BatchCost(215_465_984, 72_171_520, batch_size=10),
    "shakespeare": BatchCost(380_493_824, 127_180_800, batch_size=100),
    "har": BatchCost(23_602_176, 10_226_688, batch_size=10),
}
"""Cost of the published model of each latency row at the batch size of its measurement.

`har` was not measured: its seconds are those of femnist, scaled by the authors by a ratio of model bytes.
"""

ESTIMATE_ROW = "femnist"
"""The row from which the latency of a task without measurements is estimated."""
ESTIMATED = "flops"
CUSTOM = "custom"
"""Values of the setting `latency` besides the rows: estimate it from FLOPs, and use the task's own measurements."""

Basis = Literal["published", "measured", "estimated"]


@dataclass(frozen=True)
class LatencyScale:
    """Conversion of the batch latencies of a row to those of a run.

    Args:
        row: Name of the latency row, or "custom" for the task's own measurements.
        basis: "published" if the task stands for the model of the row, "measured" if the row was measured with the
            task's own model, "estimated" if the row is scaled by counted FLOPs.
        reference: Cost of the measured batch. For "measured", the task's own model is the unit.
        cost: Cost of a batch of the run, in the same unit.

    >>> LatencyScale("femnist", "published", PUBLISHED["femnist"], PUBLISHED["femnist"]).factor
    1.0
    """

    row: str
    basis: Basis
    reference: BatchCost
    cost: BatchCost

    @classmethod
    def published(cls, row: str, batch_size: int, reference_size: int | None = None) -> LatencyScale:
        """Return the scale of a task that stands for the published model of a row.

        Args:
            row: Name of the row.
            batch_size: Samples per batch of the run.
            reference_size: Samples per batch that stand for a measured batch. Default: as in the measurement.

        >>> round(LatencyScale.published("femnist", batch_size=60).factor, 6)
        5.5
        """
        model = PUBLISHED[row]
        reference = model if reference_size is None else replace(model, batch_size=reference_size)
        return cls(row, "published", reference, replace(model, batch_size=batch_size))

    @classmethod
    def measured(cls, batch_size: int, reference_size: int) -> LatencyScale:
        """Return the scale of latencies that were measured with the task's own model.

        Args:
            batch_size: Samples per batch of the run.
            reference_size: Samples per batch of the measurement.
        """
        model = BatchCost(1.0, FORWARD_PASS_EPOCHS, reference_size)
        return cls(CUSTOM, "measured", model, replace(model, batch_size=batch_size))

    @classmethod
    def estimated(cls, cost: BatchCost, row: str = ESTIMATE_ROW) -> LatencyScale:
        """Return the scale of latencies that are estimated from FLOPs.

        Args:
            cost: Counted cost of a batch of the run.
            row: Name of the published row to scale.
        """
        return cls(row, "estimated", PUBLISHED[row], cost)

    @property
    def factor(self) -> float:
        """Seconds of a batch as a multiple of the row's seconds."""
        return self.cost.factor(self.reference)

    @property
    def forward_epochs(self) -> float:
        """Seconds of a forward pass over all samples, in training epochs: 0.5 as published, or from counted FLOPs."""
        return self.cost.forward_epochs if self.basis == "estimated" else FORWARD_PASS_EPOCHS

    @property
    def counts_samples(self) -> bool:
        """Whether short batches are cheaper than whole ones: only batches larger than the measured ones are."""
        return self.cost.batch_size > self.reference.batch_size

    def batch_factors(self, samples: IndexArray, batches: IndexArray | None = None) -> FloatArray:
        """Return the mean seconds of a batch in an epoch, as a multiple of a whole batch.

        The last batch of an epoch is short. It counts as whole up to the measured batch size, as published. Beyond it,
        it counts by its samples: a client with 15 samples does not pay for a batch of 100.

        Args:
            samples: Samples of the epoch, one value per client.
            batches: Batches of the epoch. Default: enough for all samples.

        >>> LatencyScale.published("femnist", batch_size=100).batch_factors(np.array([15, 100, 110])).round(3).tolist()
        [0.209, 1.0, 0.555]
        """
        if not self.counts_samples:
            return np.ones(len(samples))
        size, unit = self.cost.batch_size, self.reference.batch_size
        batches = batches_per_epoch(samples, size) if batches is None else batches
        charged = np.minimum(-(-np.maximum(samples, 1) // unit) * unit, batches * size)
        mean = 1 + (1 - FIXED_SHARE) * (charged / batches / unit - 1)
        return np.asarray(mean / _size_factor(size, unit))

    def apply(self, latency: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
        """Return the latencies of a row for the batches of the run.

        Args:
            latency: Mean and deviation in milliseconds by device class, as measured.
        """
        factor = self.factor
        return {name: (mean * factor, std * factor) for name, (mean, std) in latency.items()}

    def to_json(self) -> dict[str, Any]:
        """Return all values, as the manifest has them."""
        return {
            "basis": self.basis,
            "row": self.row,
            "factor": self.factor,
            "forward_epochs": self.forward_epochs,
            "cost": _cost_to_json(self.cost, self.basis),
            "reference": _cost_to_json(self.reference, self.basis),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> LatencyScale:
        """Return the scale that `to_json` described.

        Args:
            content: The values of the manifest.
        """
        unit = {"train_flops": 1.0, "forward_flops": FORWARD_PASS_EPOCHS}
        reference, cost = (
            BatchCost(**(content[name] if content["basis"] != "measured" else {**content[name], **unit}))
            for name in ("reference", "cost")
        )
        return cls(content["row"], content["basis"], reference, cost)


def _cost_to_json(cost: BatchCost, basis: Basis) -> dict[str, Any]:
    """Return the values of a cost; FLOPs that were not counted are null."""
    known = basis != "measured"
    return {
        "train_flops": cost.train_flops if known else None,
        "forward_flops": cost.forward_flops if known else None,
        "batch_size": cost.batch_size,
    }
