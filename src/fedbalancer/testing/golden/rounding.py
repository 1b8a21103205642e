"""How far the decimals of a file let a time that follows from its numbers be off."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

import numpy as np

from fedbalancer.testing.golden.format import BaselineRun, GoldenFile, GoldenSeed
from fedbalancer.types import batches_per_epoch

ARITHMETIC = 1e-9
"""What sums in another order, and logged ratios that drift (.8499999999999999), may differ by."""

EXACT_DECIMALS = 2
"""A column without a longer number was worked out by hand: nothing of it was rounded away."""


def half_unit(column: Iterable[float | None]) -> float:
    """The most that rounding took from a number of a column: half a unit of the last decimal of its longest number,
    for a shorter one ended in zeros.

    >>> half_unit([0.25, 1.604859]), half_unit([1.0, 2.5])
    (5e-07, 0.0)
    """
    decimals = max((-int(Decimal(repr(x)).as_tuple().exponent) for x in column if x is not None), default=0)
    return float(f"5e-{decimals + 1}") if decimals > EXACT_DECIMALS else 0.0


def slowest(seed: GoldenSeed) -> GoldenSeed:
    """The seed with the longest batch latencies that are written as its own are. Expected times grow with them, so the
    difference of two such times bounds what rounding did to one."""
    more_s = half_unit(batch_s for client in seed.clients for batch_s in client.batch_s_10)
    longer = [tuple(batch_s + more_s for batch_s in client.batch_s_10) for client in seed.clients]
    clients = [c.model_copy(update={"batch_s_10": batch_s}) for c, batch_s in zip(seed.clients, longer, strict=True)]
    return seed.model_copy(update={"clients": tuple(clients)})


def round_tolerance_s(golden: GoldenFile, seed: GoldenSeed, run: BaselineRun) -> float:
    """What a round may differ by: every batch of the biggest client, a download and an upload, each rounded."""
    most = float(batches_per_epoch(np.array([client.n for client in seed.clients]), golden.B).max())
    drawn = half_unit(seconds for round in run.rounds for draw in round.draws for seconds in draw[1:4])
    return drawn * (golden.E * most + 2) + ARITHMETIC
