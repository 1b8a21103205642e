"""Power-of-choice: the candidates with the highest loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.contracts import LOSSES, ClientSelector, Private
from fedbalancer.core.fields import Multiple
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import FloatArray, IndexArray, RoundResult, ServerState, Setup
from fedbalancer.server.clients.draws import draw_weighted, pick_smallest


@dataclass(frozen=True, eq=False)
class PowerOfChoiceState:
    """State of `PowerOfChoice`.

    Args:
        invited: Whether each client has been invited at least once.
    """

    invited: NDArray[np.bool_]


@dataclass(frozen=True)
class PowerOfChoice(ClientSelector):
    """Power-of-choice: of `candidates` K clients, the K with the highest loss (Cho, Wang and Joshi, 2020).

    Candidates are drawn without replacement in proportion to their number of samples. This is the paper's rpow-d: a
    client's loss is the one in its last report, and infinite before its first invitation, so no client is asked for
    extra work. With d = K the draw depends on size only; a large d selects the highest losses.

    Differences from the paper: the loss is the mean over the trained samples, each when first seen in that training,
    instead of over all local iterations. Ties, infinite losses included, are broken at random. In the paper every
    invited client reports; here, a client that was invited but never reported counts with the mean loss of the other
    candidates, because an infinite loss would invite the same slow clients again and again.

    Args:
        candidates: Number of candidates d, as a multiple of K.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t+powerofchoice").clients
        PowerOfChoice(candidates=2.0)
    """

    needs_losses: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = LOSSES

    candidates: Multiple = 2.0

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
        rows = available[draw_weighted(state.ledger.size[available].astype(np.float64), asked, rng)]
        return np.sort(rows[pick_smallest(-self._losses(state, rows), count, rng)])

    @staticmethod
    def _losses(state: ServerState, rows: IndexArray) -> FloatArray:
        losses = state.ledger.loss_mean[rows]
        silent = np.isnan(losses)
        usual = 0.0 if silent.all() else losses[~silent].mean()
        return np.where(silent, np.where(state.clients.invited[rows], usual, np.inf), losses)
