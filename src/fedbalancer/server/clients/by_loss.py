"""Random client selection in proportion to loss and data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import LOSSES, ClientSelector, Private
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import IndexArray, ServerState, Setup
from fedbalancer.server.clients.draws import draw_weighted


@dataclass(frozen=True)
class ByLoss(ClientSelector):
    """Ours, used by canter: draws clients in proportion to mean loss times the square root of their number of samples.

    A client without a report counts with the highest loss. Every client can be selected in every round, and speed does
    not matter. Oort's scheme, which the paper uses, selects the best few clients repeatedly; where clients' labels
    differ, the model then follows these few.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("canter").clients
        ByLoss()
    """

    needs_losses: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = LOSSES

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        rng = stream(setup.seed, "clients", state.round + 1)
        losses = np.maximum(state.ledger.loss_mean[available], 1e-9)
        highest = np.nanmax(losses) if np.isfinite(losses).any() else 1.0
        weights = np.where(np.isnan(losses), highest, losses) * np.sqrt(state.ledger.size[available])
        return np.sort(available[draw_weighted(weights, min(setup.clients_per_round, len(available)), rng)])
