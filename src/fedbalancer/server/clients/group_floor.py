"""Client selection with a minimum share for every device group."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedbalancer.core.contracts import NOTHING, Private
from fedbalancer.core.fields import Count, Share
from fedbalancer.core.types import IndexArray, Ledger, ServerState, Setup
from fedbalancer.server.clients.counted import CountingSelector, CountingState


@dataclass(frozen=True)
class GroupFloor(CountingSelector):
    """Ours: guarantees every speed group a minimum share of all selections.

    Each group gets at least `floor` times its proportional share over all rounds. The wrapped selector chooses within
    the groups and fills the remaining places. Groups have equal size and are formed by seconds per batch, because
    selection by speed would otherwise exclude slow phones and their users. A group without available clients catches up
    later.

    Args:
        inner: The wrapped selector.
        floor: Guaranteed share of a group's proportional participation, from 0 to 1.
        groups: Number of groups.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t+groupfloor").clients
        GroupFloor(inner=Uniform(), floor=0.5, groups=4)
    """

    own_reactions: ClassVar[frozenset[Private]] = NOTHING

    floor: Share = 0.5
    groups: Count = 4

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        own: CountingState = state.clients
        group_of = speed_groups(state.ledger, self.groups)
        counts = np.bincount(group_of, weights=own.counts(state.ledger), minlength=self.groups)
        fair = np.bincount(group_of, minlength=self.groups) / max(len(group_of), 1)
        places = min(setup.clients_per_round, len(available))
        shortfall = self.floor * fair * setup.clients_per_round * (state.round + 1) - counts
        seen, selected = self.unwrapped(state), np.zeros(0, dtype=np.int64)
        for group in np.argsort(-shortfall, kind="stable").tolist():
            left, members = places - len(selected), available[group_of[available] == group]
            count = min(math.ceil(shortfall[group]), left, len(members))
            if count > 0:
                picked = self.inner.select_clients(replace(setup, clients_per_round=count), seen, members)
                selected = np.concatenate([selected, picked])
        if len(selected) < places:
            others, left = np.setdiff1d(available, selected), places - len(selected)
            rest = self.inner.select_clients(replace(setup, clients_per_round=left), seen, others)
            selected = np.concatenate([selected, rest])
        return np.sort(selected)


def speed_groups(ledger: Ledger, groups: int) -> IndexArray:
    """Return the speed group of every client. Groups are of nearly equal size; group 0 is the fastest.

    Args:
        ledger: The server's ledger.
        groups: Number of groups.

    Returns:
        One group number per ledger row.
    """
    place = np.empty(len(ledger.clients), dtype=np.int64)
    place[np.argsort(ledger.batch_s, kind="stable")] = np.arange(len(place))
    return place * groups // max(len(place), 1)
