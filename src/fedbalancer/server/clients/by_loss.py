"""Clients drawn in proportion to their loss and their data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import LOSSES, ClientSelector, Private
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import IndexArray, ServerState, Setup
from fedbalancer.server.clients.draws import in_proportion


@dataclass(frozen=True)
class ByLoss(ClientSelector):
    """Ours: every client may come in every round, the likelier the higher its mean loss and the more samples it has (by
    their square root, as Oort's utility grows). One never heard of counts with the highest loss.

    Oort's scheme, which the paper's client selection uses, takes the best few again and again; where clients' labels
    differ, the model goes after these few. Here high losses pull without shutting anybody out, and no speed is
    preferred: with work in batches and a deadline by useful work, a slow phone brings what it can.
    """

    needs_losses: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = LOSSES

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        rng = stream(setup.seed, "clients", state.round + 1)
        losses = np.maximum(state.ledger.loss_mean[available], 1e-9)
        highest = np.nanmax(losses) if np.isfinite(losses).any() else 1.0
        weights = np.where(np.isnan(losses), highest, losses) * np.sqrt(state.ledger.size[available])
        return np.sort(available[in_proportion(weights, min(setup.clients_per_round, len(available)), rng)])
