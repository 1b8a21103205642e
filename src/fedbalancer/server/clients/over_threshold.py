"""Client selection with sample selection (paper section 3.2.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import LOSSES, ClientSelector, Private
from fedbalancer.core.fields import Share, UpTo100
from fedbalancer.core.randomness import pick_smallest, stream
from fedbalancer.core.types import FloatArray, IndexArray, Ledger, RoundResult, ServerState, Setup
from fedbalancer.server.clients.oort import (
    Penalty,
    base_scores,
    draw_best,
    duration_penalty,
    exploit_count,
    next_exploration,
    split_explored,
)
from fedbalancer.server.expected import expected_first_s, mean_completion_s, whole_seconds


@dataclass(frozen=True)
class OverThresholdState:
    """State of `OverThresholdUtility`.

    Args:
        exploration: Share of the cohort that explores.
        preferred_s: Expected duration in seconds beyond which a client is penalised.
    """

    exploration: float
    preferred_s: float


@dataclass(frozen=True)
class OverThresholdUtility(ClientSelector):
    """The paper's client selection: Oort's scheme, with utility over the samples above the loss threshold.

    StatUtil(i) = |OT| sqrt(sum of squared losses in OT / |OT|) (section 3.2.3).

    Score of a client that has reported: its utility clipped at the `clip` quantile and scaled to [0, 1], plus Oort's
    temporal term sqrt(0.1 ln R / last round), times (preferred / expected duration)^alpha if it is slower than
    preferred. A share 1 - exploration of the cohort is drawn in proportion to score among clients with at least
    `cutoff` times the score of rank K (1 - exploration). The rest have never reported; those with the shortest expected
    duration come first. A shortage on either side is filled from the other.

    Differences: the paper gives StatUtil only; the scheme is Oort's with the constants of the authors' code (alpha 0.5,
    Oort's is 2). Their code adds the temporal term to un-normalised utility, where it has no effect
    (`normalise=False`), and clips over clients never selected as well, which is the same once all have been selected.

    Args:
        alpha: Exponent of the duration penalty.
        exploration: Initial share of the cohort that explores.
        exploration_decay: Factor of that share per round.
        exploration_min: Share at which the decay stops.
        clip: Quantile at which utilities are clipped.
        cutoff: Smallest score to exploit, as a share of the score of the last rank.
        normalise: Whether to scale utilities to [0, 1].

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedbalancer").clients == OverThresholdUtility()
        True
    """

    needs_losses: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = LOSSES

    alpha: UpTo100 = 0.5
    exploration: Share = 0.9
    exploration_decay: Share = 0.98
    exploration_min: Share = 0.2
    clip: Share = 0.95
    cutoff: Share = 0.95
    normalise: bool = True

    def init(self, setup: Setup) -> OverThresholdState:
        return OverThresholdState(self.exploration, whole_seconds(mean_completion_s(setup, forward_pass=True)))

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> OverThresholdState:
        own: OverThresholdState = state.clients
        decay, least = self.exploration_decay, self.exploration_min
        return OverThresholdState(next_exploration(own.exploration, decay, least, state.ledger), own.preferred_s)

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        count = min(setup.clients_per_round, len(available))
        rng = stream(setup.seed, "clients", state.round + 1)
        known, unknown = split_explored(state.ledger, available)
        base = self._base_scores(state, known)
        if not base.any():
            return np.sort(rng.choice(available, size=count, replace=False))
        exploit = exploit_count(count, state.clients.exploration, len(known), len(unknown))
        best = known[draw_best(base, self._penalty(setup, state, known), exploit, self.cutoff, rng)]
        return np.sort(np.concatenate([best, self._fastest(setup, state.ledger, unknown, count - exploit, rng)]))

    def scores(self, setup: Setup, state: ServerState, known: IndexArray) -> FloatArray:
        """Return the scores of clients that have reported at least once.

        Args:
            setup: Constants of the run.
            state: The server's state.
            known: Ledger rows of these clients.

        Returns:
            One score per client.
        """
        return self._base_scores(state, known) * self._penalty(setup, state, known)(np.arange(len(known)))

    def _base_scores(self, state: ServerState, known: IndexArray) -> FloatArray:
        ledger = state.ledger
        utility = np.sqrt(np.maximum(ledger.over_count[known], 0) * np.maximum(ledger.over_sumsq[known], 0))
        return base_scores(utility, ledger.last_round[known], state.round + 1, self.clip, self.normalise)

    def _penalty(self, setup: Setup, state: ServerState, known: IndexArray) -> Penalty:
        return duration_penalty(setup, state.ledger, known, state.clients.preferred_s, self.alpha)

    @staticmethod
    def _fastest(setup: Setup, ledger: Ledger, unknown: IndexArray, count: int, rng: np.random.Generator) -> IndexArray:
        if count in (0, len(unknown)):
            return unknown[:count]
        return unknown[pick_smallest(expected_first_s(setup, ledger, unknown), count, rng)]
