"""How long an upload will take, by those that were seen before; and work policies that go by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedbalancer.client.work import WholeBatches, WholeEpochs

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
