"""Power-of-choice: of some candidates those with the highest loss (Cho, Wang, Joshi, 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.contracts import LOSSES, ClientSelector, Private
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import FloatArray, IndexArray, RoundResult, ServerState, Setup
from fedbalancer.server.clients.draws import in_proportion, smallest


@dataclass(frozen=True, eq=False)
class PowerOfChoiceState:
    """Who has been invited at least once."""

    invited: NDArray[np.bool_]


@dataclass(frozen=True)
class PowerOfChoice(ClientSelector):
    """d = `candidates` K clients are drawn without replacement in proportion to their data; the K of them with the
    highest local loss take part.

    This is the paper's rpow-d: a client's loss is the one that came with its last update, infinite before it was ever
    invited, so that nobody is asked for anything extra. d = K is a draw by size, a large d goes for the highest losses.
    Departures: the loss is the mean over the trained samples when each was first seen in that training, not over all
    local iterations; equal losses, the infinite ones included, are chosen among at random. In the paper everybody
    invited reports. Here some miss the deadline, and who has never reported counts with the mean loss of the
    other candidates: an infinite one would invite the same slow clients for ever.
    """

    needs_losses: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = LOSSES

    candidates: float = 2.0

    def init(self, setup: Setup) -> PowerOfChoiceState:
        return PowerOfChoiceState(np.zeros(len(setup.ledger.clients), dtype=np.bool_))

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> PowerOfChoiceState:
        invited = state.clients.invited.copy()
        invited[state.ledger.rows(result.plan.cohort)] = True
        return PowerOfChoiceState(invited)

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        count = min(setup.clients_per_round, len(available))
        rng = stream(setup.seed, "clients", state.round + 1)
        asked = max(int(self.candidates * setup.clients_per_round + 1e-9), count)
        rows = available[in_proportion(state.ledger.size[available].astype(np.float64), asked, rng)]
        return np.sort(rows[smallest(-self._losses(state, rows), count, rng)])

    @staticmethod
    def _losses(state: ServerState, rows: IndexArray) -> FloatArray:
        losses = state.ledger.loss_mean[rows]
        silent = np.isnan(losses)
        usual = 0.0 if silent.all() else losses[~silent].mean()
        return np.where(silent, np.where(state.clients.invited[rows], usual, np.inf), losses)
