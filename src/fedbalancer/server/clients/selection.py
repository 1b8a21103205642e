"""What Oort's exploit-and-explore scheme is made of (Lai et al., OSDI'21, Algorithm 1), for every policy that uses it.

Plain functions on columns, so that a million clients take milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fedbalancer.core.types import CountArray, FloatArray, IndexArray, Ledger, Setup
from fedbalancer.server.clients.draws import in_proportion
from fedbalancer.server.expected import expected_s

UNCERTAINTY = 0.1
"""Oort's weight of the temporal uncertainty."""

GUESS = 4
"""How many times the wanted clients are looked at for a first guess of the cut-off."""

Penalty = Callable[[IndexArray], FloatArray]
"""Factors from 0 to 1 of the clients at these positions."""


def next_exploration(exploration: float, decay: float, least: float, ledger: Ledger) -> float:
    """The share of the next cohort that explores: smaller every round while it is over `least`, none once all are
    known."""
    if ledger.explored.all():
        return 0.0
    return exploration * decay if exploration > least else exploration


def exploited(count: int, exploration: float, known: int, unknown: int) -> int:
    """How many of `count` clients are exploited; a shortage on either side is filled from the other.

    >>> exploited(10, 0.9, known=50, unknown=50), exploited(10, 0.9, known=50, unknown=4)
    (1, 6)
    """
    # The guard against 10 (1 - .9) = 0.9999... is smaller than any share of a cohort.
    wanted = int(count * (1 - exploration) + 1e-9)
    return min(max(wanted, count - unknown), known)


def known_or_not(ledger: Ledger, available: IndexArray) -> tuple[IndexArray, IndexArray]:
    """Those of the available clients that have been heard of, and the others."""
    explored = ledger.explored[available]
    # Positions first: ten times as fast as indexing with truth values.
    return available[np.flatnonzero(explored)], available[np.flatnonzero(~explored)]


def base_scores(
    utility: FloatArray, last_round: CountArray, round: int, clip: float, normalise: bool = True
) -> FloatArray:
    """Scores before any penalty: utilities clipped at the `clip` quantile and scaled to [0, 1], plus the temporal
    uncertainty sqrt(0.1 ln R / L) of a client last heard in round L. Equal utilities are as good as any."""
    if not len(utility):
        return np.zeros(0)
    rank = int(clip * len(utility))
    scores = np.minimum(utility, np.partition(utility, rank)[rank]) if rank < len(utility) else utility.copy()
    if normalise:
        low, high = scores.min(), scores.max()
        scores = (scores - low) / (high - low) if high > low else np.ones_like(scores)
    scores += np.sqrt(UNCERTAINTY * math.log(round) / np.maximum(last_round, 1))
    return np.asarray(scores)


def duration_penalty(setup: Setup, ledger: Ledger, rows: IndexArray, preferred_s: float, alpha: float) -> Penalty:
    """(T / t)^alpha for a client whose expected duration t is longer than T, otherwise 1."""

    def penalty(positions: IndexArray) -> FloatArray:
        expected = expected_s(setup, ledger, rows[positions])
        slow = expected > preferred_s
        factors = np.ones(len(expected))
        factors[slow] = (preferred_s / expected[slow]) ** alpha
        return factors

    return penalty


def exploit(base: FloatArray, penalty: Penalty, count: int, cutoff: float, rng: np.random.Generator) -> IndexArray:
    """`count` positions drawn in proportion to score among those over the cut-off."""
    if count == 0:
        return np.zeros(0, dtype=np.int64)
    best, scores = over_cutoff(base, penalty, count, cutoff)
    return best[in_proportion(scores, count, rng)]


def over_cutoff(base: FloatArray, penalty: Penalty, count: int, cutoff: float) -> tuple[IndexArray, FloatArray]:
    """Positions of all scores (base times penalty) of at least `cutoff` times the score of rank `count`, and these
    scores.

    A penalty only lowers a score, so nobody whose base is below the cut-off can be over it. The best bases give a
    first guess of the cut-off, which is never too high; only those that it leaves are worked out.
    """
    rank = min(count, len(base) - 1)
    looked = _at_least(base, _largest(base, min(GUESS * rank, len(base) - 1)))
    guess = _largest(base[looked] * penalty(looked), rank)
    left = _at_least(base, cutoff * guess)
    scores = base[left] * penalty(left)
    kept = _at_least(scores, cutoff * _largest(scores, rank))
    return left[kept], scores[kept]


def _largest(values: FloatArray, rank: int) -> float:
    """The value of a rank, 0 being the highest."""
    place = len(values) - 1 - rank
    return float(np.partition(values, place)[place])


def _at_least(values: FloatArray, limit: float) -> IndexArray:
    return np.flatnonzero(values >= limit)
