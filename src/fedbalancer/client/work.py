"""Work policies, which decide how much a client trains, and the mini-batches of a training."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedbalancer.core.contracts import WorkPolicy
from fedbalancer.core.fields import Share, UpTo100
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import ClientWork, IndexArray


@dataclass(frozen=True)
class AllOrNothing(WorkPolicy):
    """Trains all epochs if they finish in time, and nothing otherwise. This is FedAvg.

    Example:
        >>> AllOrNothing().batches(lambda batches: 2.0 * batches, deadline_s=15.0, per_epoch=4, epochs=2)
        0
    """

    def batches(self, elapsed_s: Callable[[int], float], deadline_s: float, per_epoch: int, epochs: int) -> int:
        return per_epoch * epochs if elapsed_s(per_epoch * epochs) <= deadline_s else 0


@dataclass(frozen=True)
class WholeEpochs(WorkPolicy):
    """Trains as many whole epochs as finish in time. Used by Prox and by the paper's FedBalancer.

    Example:
        >>> WholeEpochs().batches(lambda batches: 2.0 * batches, deadline_s=15.0, per_epoch=4, epochs=2)
        4
    """

    def batches(self, elapsed_s: Callable[[int], float], deadline_s: float, per_epoch: int, epochs: int) -> int:
        fitting = (epoch for epoch in range(epochs, 0, -1) if elapsed_s(epoch * per_epoch) <= deadline_s)
        return next(fitting, 0) * per_epoch


@dataclass(frozen=True)
class WholeBatches(WorkPolicy):
    """Trains as many batches as finish in time. This policy is ours.

    A client that stops in the middle of an epoch still reports. Its losses, counts and weight cover the samples it
    trained.

    Example:
        >>> WholeBatches().batches(lambda batches: 2.0 * batches, deadline_s=15.0, per_epoch=4, epochs=2)
        7
    """

    stops_in_epoch: ClassVar[bool] = True

    def batches(self, elapsed_s: Callable[[int], float], deadline_s: float, per_epoch: int, epochs: int) -> int:
        return bisect_right(range(1, per_epoch * epochs + 1), deadline_s, key=elapsed_s)


@dataclass(frozen=True)
class RepeatedEpochs(WorkPolicy):
    """PyramidFL: trains all epochs if they finish in time, and uses a share of the time that is left for more.

    Of E batches that all epochs have, a client trains E (1 + min(`most`, beta n / E)), where n is the number of batches
    that fit into the rest of the time.

    Without a deadline, and on Flower, clients train no more than all epochs.

    Args:
        beta: Share of the time that is left.
        most: Upper bound of the repetitions.

    Example:
        >>> RepeatedEpochs().batches(lambda batches: 2.0 * batches, deadline_s=31.0, per_epoch=4, epochs=2)
        11
    """

    beta: Share = 0.5
    most: UpTo100 = 10.0

    @property
    def repeats(self) -> float:
        """The upper bound."""
        return self.most

    def batches(self, elapsed_s: Callable[[int], float], deadline_s: float, per_epoch: int, epochs: int) -> int:
        planned = per_epoch * epochs
        if elapsed_s(planned) > deadline_s:
            return 0
        most = int(self.most * planned)
        if not self.beta or not most or not math.isfinite(deadline_s):
            return planned
        left = range(planned + 1, planned + int(min(most / self.beta, 10**6)) + 2)
        return planned + min(int(self.beta * bisect_right(left, deadline_s, key=elapsed_s)), most)


LONGER = 2.0
"""No upload is expected to take longer than this multiple of the longest known one."""


def batches_by_forecast(seen_s: Sequence[float], fitting: Callable[[float], int]) -> int:
    """Return the number of batches with the highest expected number of batches that arrive in time.

    If n uploads are known, the next one is at most as long as the i-th shortest with probability i / (n + 1), and at
    most twice as long as the longest with probability 1. A steady network leaves a small margin, an unsteady one a
    larger one. Of equal choices, the smallest is returned.

    Args:
        seen_s: Durations of earlier uploads, at least one.
        fitting: `fitting(upload_s)` returns how many batches fit if the upload takes `upload_s` seconds.

    Example:
        >>> steady, unsteady = [1.0, 1.1, 1.2], [1.0, 1.1, 9.0]
        >>> [batches_by_forecast(seen, lambda upload_s: int(40 - upload_s)) for seen in (steady, unsteady)]
        [37, 31]
    """
    tried = [*sorted(seen_s), LONGER * max(seen_s)]
    chances = [(rank + 1) / len(tried) for rank in range(len(tried))]
    fit = [fitting(upload_s) for upload_s in tried]
    best = max(range(len(tried)), key=lambda place: (chances[place] * fit[place], -fit[place]))
    return fit[best]


@dataclass(frozen=True)
class ForecastBatches(WholeBatches):
    """`WholeBatches` on a device that does not know how long its upload takes. This policy is ours.

    The client predicts the upload from earlier ones (`batches_by_forecast`), and before the first from its download. If
    nothing seems to fit, it trains the minimum for a report. Its report may be late.

    Without this policy, simulated clients know the duration of their upload. On Flower no client does: the server
    subtracts a forecast of the transport from every client's budget, and this policy equals `WholeBatches`.
    """

    forecasts: ClassVar[bool] = True


@dataclass(frozen=True)
class ForecastEpochs(WholeEpochs):
    """`WholeEpochs` on a device that does not know how long its upload takes; see `ForecastBatches`."""

    forecasts: ClassVar[bool] = True


def epochs(work: ClientWork) -> Iterator[IndexArray]:
    """Yield the sample numbers that each epoch trains, in order.

    Every epoch shuffles the samples again and keeps the short last batch. The result depends only on the work.

    Args:
        work: The training.

    Raises:
        ValueError: If there are batches but no samples, or epochs without batches.

    Example:
        >>> import numpy as np
        >>> work = ClientWork("ann", np.arange(5), 4, batch_size=2, learning_rate=0.1, mu=0, clip_norm=None, seed=0)
        >>> [len(rows) for rows in epochs(work)]
        [5, 2]
    """
    if work.batches > 0 and len(work.indices) == 0:
        raise ValueError(f"client {work.client!r} was given {work.batches} batches of no samples")
    if work.epoch_batches is not None and work.epoch_batches < 1:
        raise ValueError(f"client {work.client!r} was given epochs of {work.epoch_batches} batches")
    for epoch, done in enumerate(range(0, work.batches, work.per_epoch)):
        order = stream(work.seed, "batches", epoch, work.client).permutation(work.indices)
        yield order[: min(work.per_epoch, work.batches - done) * work.batch_size]


def batches(work: ClientWork) -> Iterator[tuple[int, IndexArray]]:
    """Yield the epoch and the sample numbers of each batch.

    Args:
        work: The training.

    Example:
        >>> import numpy as np
        >>> work = ClientWork("ann", np.arange(5), 4, batch_size=2, learning_rate=0.1, mu=0, clip_norm=None, seed=0)
        >>> [(epoch, len(rows)) for epoch, rows in batches(work)]
        [(0, 2), (0, 2), (0, 1), (1, 2)]
    """
    for epoch, rows in enumerate(epochs(work)):
        for start in range(0, len(rows), work.batch_size):
            yield epoch, rows[start : start + work.batch_size]
