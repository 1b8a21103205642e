"""Work policies, which decide how much a client trains, and the mini-batches of a training."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedbalancer.core.contracts import WorkPolicy
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import ClientWork, IndexArray


@dataclass(frozen=True)
class AllOrNothing(WorkPolicy):
    """FedAvg: all epochs in time, or the client is dropped."""

    def batches(self, elapsed_s: Callable[[int], float], deadline_s: float, per_epoch: int, epochs: int) -> int:
        return per_epoch * epochs if elapsed_s(per_epoch * epochs) <= deadline_s else 0


@dataclass(frozen=True)
class WholeEpochs(WorkPolicy):
    """Prox and the paper's FedBalancer: the most whole epochs that fit, at least one."""

    def batches(self, elapsed_s: Callable[[int], float], deadline_s: float, per_epoch: int, epochs: int) -> int:
        fitting = (epoch for epoch in range(epochs, 0, -1) if elapsed_s(epoch * per_epoch) <= deadline_s)
        return next(fitting, 0) * per_epoch


@dataclass(frozen=True)
class WholeBatches(WorkPolicy):
    """Ours: the most batches that fit, at least one. A client that stops in the middle of an epoch still reports, and
    its losses, counts and weight cover the samples that it really saw."""

    stops_in_epoch: ClassVar[bool] = True

    def batches(self, elapsed_s: Callable[[int], float], deadline_s: float, per_epoch: int, epochs: int) -> int:
        return bisect_right(range(1, per_epoch * epochs + 1), deadline_s, key=elapsed_s)


LONGER = 2.0
"""Times the longest upload that was seen, that none is expected to take longer than."""


def batches_by_forecast(seen_s: Sequence[float], fitting: Callable[[float], int]) -> int:
    """How many batches to train so that the most are to be expected to arrive, where `fitting(upload_s)` are those that
    fit before an upload of so many seconds, and `seen_s` are earlier ones, at least one.

    An upload as long as the i-th shortest of n is enough with a chance of i in n + 1, and one of twice the longest is
    taken to be enough for sure. What is expected of a number of batches is that times the chance: a phone whose
    network is steady leaves little room, one whose network is not leaves more, and nothing has to be chosen. Of equals
    the fewest batches, which are the surest.

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
    """Ours: `WholeBatches` on a phone that does not know how long its upload will take. It goes by its own earlier ones
    (`batches_by_forecast`), before the first by its download, and where nothing seems to fit it does the least that
    makes a report. Its report may come too late.

    The simulator's phones know their upload otherwise. On Flower nobody does: there the server takes a forecast of the
    transport off every client's budget, whatever the method, and this is `WholeBatches`.
    """

    forecasts: ClassVar[bool] = True


@dataclass(frozen=True)
class ForecastEpochs(WholeEpochs):
    """`WholeEpochs` on such a phone."""

    forecasts: ClassVar[bool] = True


def epochs(work: ClientWork) -> Iterator[IndexArray]:
    """The sample numbers that each epoch trains, in order, `work.batches` batches in all: a function of the work's seed
    and client. With `epoch_batches` an epoch is the first so many batches of its shuffle.

    >>> import numpy as np
    >>> work = ClientWork("ann", np.arange(5), batches=4, batch_size=2, learning_rate=0.1, mu=0, clip_norm=None, seed=0)
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
    """Epoch and sample numbers of each batch.

    >>> import numpy as np
    >>> work = ClientWork("ann", np.arange(5), batches=4, batch_size=2, learning_rate=0.1, mu=0, clip_norm=None, seed=0)
    >>> [(epoch, len(rows)) for epoch, rows in batches(work)]
    [(0, 2), (0, 2), (0, 1), (1, 2)]
    """
    for epoch, rows in enumerate(epochs(work)):
        for start in range(0, len(rows), work.batch_size):
            yield epoch, rows[start : start + work.batch_size]
