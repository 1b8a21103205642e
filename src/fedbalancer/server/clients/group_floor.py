"""Client selection in which no group of devices is left out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import NOTHING, Private
from fedbalancer.core.fields import Count, Share
from fedbalancer.core.types import IndexArray, Ledger, ServerState, Setup
from fedbalancer.server.clients.counted import Counted, CountedState


@dataclass(frozen=True)
class GroupFloor(Counted):
    """Ours: another policy chooses, but every group of clients gets at least the share `floor` of the places that it
    would have by its number, over all rounds so far. Who of a group comes is the other policy's choice, too.

    Groups are `groups` of like size by the seconds that a batch takes, which is what the server knows of a device, and
    what selection by speed leaves out: with the slow phones go the people who have them. Availability may leave a
    group nobody to choose; what it is owed then it gets later.
    """

    own_reactions: ClassVar[frozenset[Private]] = NOTHING

    floor: Share = 0.5
    groups: Count = 4

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        own: CountedState = state.clients
        group_of = speed_groups(state.ledger, self.groups)
        had = np.bincount(group_of, weights=own.counts(state.ledger), minlength=self.groups)
        fair = np.bincount(group_of, minlength=self.groups) / max(len(group_of), 1)
        places = min(setup.clients_per_round, len(available))
        owed = self.floor * fair * setup.clients_per_round * (state.round + 1) - had
        seen, chosen = self.unwrapped(state), np.zeros(0, dtype=np.int64)
        for group in np.argsort(-owed, kind="stable").tolist():
            left, there = places - len(chosen), available[group_of[available] == group]
            count = min(math.ceil(owed[group]), left, len(there))
            if count > 0:
                mine = self.inner.select_clients(replace(setup, clients_per_round=count), seen, there)
                chosen = np.concatenate([chosen, mine])
        if len(chosen) < places:
            others, left = np.setdiff1d(available, chosen), places - len(chosen)
            more = self.inner.select_clients(replace(setup, clients_per_round=left), seen, others)
            chosen = np.concatenate([chosen, more])
        return np.sort(chosen)


def speed_groups(ledger: Ledger, groups: int) -> IndexArray:
    """The group of every client: as many as nearly can be in each, the fastest in the first."""
    place = np.empty(len(ledger.clients), dtype=np.int64)
    place[np.argsort(ledger.batch_s, kind="stable")] = np.arange(len(place))
    return place * groups // max(len(place), 1)
