"""Client selection with sample selection (paper section 3.2.3): Oort's scheme over the samples above the threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedbalancer.randomness import stream
from fedbalancer.server.expected import batches, completion_s, mean_completion_s, whole_seconds
from fedbalancer.types import FloatArray, IndexArray, Ledger, RoundResult, ServerState, Setup


@dataclass(frozen=True)
class OortState:
    """The share of the cohort that explores, and the duration beyond which a client is penalised."""

    exploration: float
    preferred_s: float


@dataclass(frozen=True)
class OverThresholdUtility:
    """StatUtil(i) = |OT| sqrt(sum of squared losses in OT / |OT|), inside Oort's exploit-and-explore scheme.

    Score of a client that has succeeded before: utility clipped at the `clip` quantile, scaled to [0, 1], plus
    Oort's temporal term sqrt(0.1 ln R / last round), times (preferred / expected duration)^alpha if it is slower
    than preferred. A share 1 - exploration of the cohort is drawn in proportion to score among those at or above
    `cutoff` times the score of rank K (1 - exploration); the rest are clients never heard of, the fastest expected
    first. A shortage on either side is filled from the other.

    Departures. The paper gives StatUtil only; the scheme is Oort's with the constants of the authors' code (alpha .5,
    where Oort has 2). Their code added the temporal term to un-normalised utility, where it vanishes
    (`normalise=False`), and clipped over clients never selected as well, which is the same once all have been.
    """

    alpha: float = 0.5
    exploration: float = 0.9
    exploration_decay: float = 0.98
    exploration_min: float = 0.2
    clip: float = 0.95
    cutoff: float = 0.95
    normalise: bool = True

    def init(self, setup: Setup) -> OortState:
        return OortState(self.exploration, whole_seconds(mean_completion_s(setup, forward_pass=True)))

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> OortState:
        own: OortState = state.clients
        if state.ledger.explored.all():
            return OortState(0.0, own.preferred_s)
        decayed = own.exploration * (self.exploration_decay if own.exploration > self.exploration_min else 1.0)
        return OortState(decayed, own.preferred_s)

    def choose(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        count = min(setup.clients_per_round, len(available))
        rng = stream(setup.seed, "clients", state.round + 1)
        explored = state.ledger.explored[available]
        known, unknown = available[explored], available[~explored]
        scores = self.scores(setup, state, known)
        if not scores.any():
            return np.sort(rng.choice(available, size=count, replace=False))
        # The guard against 10 (1 - .9) = 0.9999... is smaller than any share of a cohort.
        exploit = min(int(count * (1 - state.clients.exploration) + 1e-9), len(known))
        exploit = max(exploit, count - len(unknown))
        chosen = known[self._exploit(scores, exploit, rng)]
        return np.sort(np.concatenate([chosen, self._explore(setup, state.ledger, unknown, count - exploit, rng)]))

    def scores(self, setup: Setup, state: ServerState, known: IndexArray) -> FloatArray:
        """Oort's score of clients that have succeeded at least once."""
        ledger, own = state.ledger, state.clients
        if not len(known):
            return np.zeros(0)
        utility = np.sqrt(np.maximum(ledger.over_count[known], 0) * np.maximum(ledger.over_sumsq[known], 0))
        rank = int(self.clip * len(utility))
        utility = np.minimum(utility, np.partition(utility, rank)[rank]) if rank < len(utility) else utility
        if self.normalise:
            low, high = utility.min(), utility.max()
            utility = (utility - low) / (high - low) if high > low else np.ones_like(utility)
        current = state.round + 1
        scores = utility + np.sqrt(0.1 * math.log(current) / np.maximum(ledger.last_round[known], 1))
        expected = completion_s(
            ledger, batches(ledger.recent_trained[known].mean(axis=1), setup.batch_size), setup.epochs, known
        )
        penalty = np.where(expected > own.preferred_s, (own.preferred_s / expected) ** self.alpha, 1.0)
        return np.asarray(scores * penalty)

    def _exploit(self, scores: FloatArray, count: int, rng: np.random.Generator) -> IndexArray:
        """Positions drawn without replacement in proportion to score, from those over the cut-off."""
        if count == 0:
            return np.zeros(0, dtype=np.int64)
        rank = min(count, len(scores) - 1)
        cutoff = self.cutoff * -np.partition(-scores, rank)[rank]
        pool = np.flatnonzero(scores >= cutoff)
        # The smallest of Exp(1)/score are a draw without replacement in proportion to score.
        with np.errstate(divide="ignore"):
            keys = rng.exponential(size=len(pool)) / scores[pool]
        return pool[np.argpartition(keys, count - 1)[:count]]

    @staticmethod
    def _explore(setup: Setup, ledger: Ledger, unknown: IndexArray, count: int, rng: np.random.Generator) -> IndexArray:
        """The fastest expected of the clients never heard of, ties broken at random."""
        if count == 0:
            return np.zeros(0, dtype=np.int64)
        expected = completion_s(ledger, batches(ledger.size[unknown], setup.batch_size), setup.epochs, unknown)
        if count < len(unknown):
            unknown_order = np.lexsort((rng.random(len(unknown)), expected))
            return unknown[unknown_order[:count]]
        return unknown
