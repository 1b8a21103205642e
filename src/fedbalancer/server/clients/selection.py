"""Oort's exploration-exploitation scheme (Lai et al., OSDI 2021, Algorithm 1), shared by the policies that use it.

Functions on columns, so that a million clients take milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fedbalancer.core.types import CountArray, FloatArray, IndexArray, Ledger, Setup
from fedbalancer.server.clients.draws import draw_weighted
from fedbalancer.server.expected import expected_s

UNCERTAINTY = 0.1
"""Oort's weight of temporal uncertainty."""

GUESS_FACTOR = 4
"""Size of the first guess of the cut-off, as a multiple of the wanted clients."""

Penalty = Callable[[IndexArray], FloatArray]
"""Maps positions to factors from 0 to 1."""


def next_exploration(exploration: float, decay: float, least: float, ledger: Ledger) -> float:
    """Return the share of the next cohort that explores.

    Args:
        exploration: Current share.
        decay: Factor per round while the share exceeds `least`.
        least: Share at which the decay stops.
        ledger: The server's ledger.

    Returns:
        The next share, or 0 once every client has reported.
    """
    if ledger.explored.all():
        return 0.0
    return exploration * decay if exploration > least else exploration


def exploit_count(count: int, exploration: float, known: int, unknown: int) -> int:
    """Return how many of `count` clients exploit. A shortage on either side is filled from the other.

    Args:
        count: Size of the cohort.
        exploration: Share of the cohort that explores.
        known: Number of available clients that have reported.
        unknown: Number of available clients that have not.

    Returns:
        A number from 0 to `known`.

    Example:
        >>> exploit_count(10, 0.9, known=50, unknown=50), exploit_count(10, 0.9, known=50, unknown=4)
        (1, 6)
    """
    # 1e-9 guards against 10 (1 - 0.9) = 0.9999...
    wanted = int(count * (1 - exploration) + 1e-9)
    return min(max(wanted, count - unknown), known)


def split_explored(ledger: Ledger, available: IndexArray) -> tuple[IndexArray, IndexArray]:
    """Split the available clients into those that have reported and those that have not."""
    explored = ledger.explored[available]
    # Indexing with positions is ten times as fast as with booleans.
    return available[np.flatnonzero(explored)], available[np.flatnonzero(~explored)]


def base_scores(
    utility: FloatArray, last_round: CountArray, round_number: int, clip: float, normalise: bool = True
) -> FloatArray:
    """Return scores before any penalty.

    Utilities are clipped at the `clip` quantile and scaled to [0, 1] (equal utilities become 1). The temporal
    uncertainty sqrt(0.1 ln R / L) is added, where L is the client's last round.

    Args:
        utility: Statistical utility of each client.
        last_round: Round of each client's last report, L.
        round_number: The current round, R.
        clip: Quantile at which utilities are clipped.
        normalise: Whether to scale utilities to [0, 1].

    Returns:
        One score per client.
    """
    if not len(utility):
        return np.zeros(0)
    rank = int(clip * len(utility))
    scores = np.minimum(utility, np.partition(utility, rank)[rank]) if rank < len(utility) else utility.copy()
    if normalise:
        low, high = scores.min(), scores.max()
        scores = (scores - low) / (high - low) if high > low else np.ones_like(scores)
    scores += np.sqrt(UNCERTAINTY * math.log(round_number) / np.maximum(last_round, 1))
    return np.asarray(scores)


def duration_penalty(setup: Setup, ledger: Ledger, rows: IndexArray, preferred_s: float, alpha: float) -> Penalty:
    """Return the penalty (T / t)^alpha for clients whose expected duration t exceeds T, and 1 for the others."""

    def penalty(positions: IndexArray) -> FloatArray:
        expected = expected_s(setup, ledger, rows[positions])
        slow = expected > preferred_s
        factors = np.ones(len(expected))
        factors[slow] = (preferred_s / expected[slow]) ** alpha
        return factors

    return penalty


def exploit(base: FloatArray, penalty: Penalty, count: int, cutoff: float, rng: np.random.Generator) -> IndexArray:
    """Draw `count` positions in proportion to score among those above the cut-off."""
    if count == 0:
        return np.zeros(0, dtype=np.int64)
    best, scores = select_over_cutoff(base, penalty, count, cutoff)
    return best[draw_weighted(scores, count, rng)]


def select_over_cutoff(base: FloatArray, penalty: Penalty, count: int, cutoff: float) -> tuple[IndexArray, FloatArray]:
    """Return the positions and values of all scores of at least `cutoff` times the score of rank `count`.

    A score is base times penalty. A penalty only lowers a score, so a client whose base is below the cut-off cannot
    exceed it. The best bases give a first guess of the cut-off that is never too high; only the clients above it are
    scored.
    """
    rank = min(count, len(base) - 1)
    candidates = _at_least(base, _value_of_rank(base, min(GUESS_FACTOR * rank, len(base) - 1)))
    guess = _value_of_rank(base[candidates] * penalty(candidates), rank)
    left = _at_least(base, cutoff * guess)
    scores = base[left] * penalty(left)
    kept = _at_least(scores, cutoff * _value_of_rank(scores, rank))
    return left[kept], scores[kept]


def _value_of_rank(values: FloatArray, rank: int) -> float:
    """Return the value of a rank; rank 0 is the highest."""
    place = len(values) - 1 - rank
    return float(np.partition(values, place)[place])


def _at_least(values: FloatArray, limit: float) -> IndexArray:
    return np.flatnonzero(values >= limit)
