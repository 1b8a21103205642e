"""Selectors that wrap another one and select by the tags of clients, such as `pixel`, `canary` or `charging`.

On Flower a client reports its tags; in the simulator they are the classes of a fleet's devices. A client without tags
has an empty set of them. Several tags are written with a plus: `charging+unmetered`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.contracts import NOTHING, ClientSelector, Private
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.fields import Rounds, Share, check_fields
from fedbalancer.core.types import IndexArray, Ledger, RoundResult, ServerState, Setup
from fedbalancer.core.wrapping import Wrapping
from fedbalancer.server.clients.over_threshold import OverThresholdUtility


@dataclass(frozen=True)
class TagState:
    """State of a selector by tags: only that of the wrapped selector."""

    inner: Any


@dataclass(frozen=True)
class TagSelector(Wrapping, ClientSelector):
    """Base of selectors by tags.

    Args:
        inner: The wrapped selector.
    """

    own_reactions: ClassVar[frozenset[Private]] = NOTHING

    inner: ClientSelector = field(default_factory=OverThresholdUtility)

    def init(self, setup: Setup) -> TagState:
        return TagState(self.inner.init(setup))

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> TagState:
        return TagState(self.inner.observe(setup, self.unwrapped(state), result))

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        return self.inner.select_clients(setup, self.unwrapped(state), available)


@dataclass(frozen=True)
class Tagged(TagSelector):
    """Ours: only clients with all tags of `require` and none of `exclude` are selected.

    A condition of a device, such as charging, is a tag that its client reports.

    Args:
        inner: The wrapped selector.
        require: Tags that a client must have.
        exclude: Tags that a client must not have.

    Raises:
        BadSetting: A tag is in both.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedbalancer[clients=Tagged(require='charging+unmetered')]").clients.require
        'charging+unmetered'
    """

    own_reactions: ClassVar[frozenset[Private]] = NOTHING

    require: str = ""
    exclude: str = ""

    def __post_init__(self) -> None:
        """Check that a client can be selected."""
        check_fields(self)
        if both := sorted(split_tags(self.require) & split_tags(self.exclude)):
            raise BadSetting(f"Tagged: {both[0]!r} is in require and in exclude, so that no client can be selected")

    def eligible(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        """Return the available clients with the required tags."""
        rows = self.inner.eligible(setup, self.unwrapped(state), available)
        required, excluded = split_tags(self.require), split_tags(self.exclude)
        if not (required or excluded):
            return rows
        tags = [tags_of(state.ledger, row) for row in rows.tolist()]
        keep = np.array([required <= each and not excluded & each for each in tags], dtype=np.bool_)
        return np.asarray(rows[keep])


@dataclass(frozen=True)
class Canary(TagSelector):
    """Ours: in the first rounds only clients with one tag are selected, to try a new model or app on few devices.

    Without any client of this tag, all clients are selected.

    Args:
        inner: The wrapped selector.
        tag: Tag of the first clients.
        rounds: Number of rounds with these clients only.

    Raises:
        BadSetting: `tag` is not one tag.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedbalancer[clients=Canary(rounds=20)]").clients.tag
        'canary'
    """

    own_reactions: ClassVar[frozenset[Private]] = NOTHING

    tag: str = "canary"
    rounds: Rounds = 10

    def __post_init__(self) -> None:
        """Check the tag."""
        check_fields(self)
        _check_tag("Canary", self.tag)

    def eligible(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        """Return the available clients; in the first rounds only those with the tag."""
        rows = self.inner.eligible(setup, self.unwrapped(state), available)
        exists = any(self.tag in tags for tags in state.ledger.tags.values())
        alone = state.round < self.rounds and exists
        return np.asarray(rows[has_tag(state.ledger, rows, self.tag)]) if alone else rows


@dataclass(frozen=True)
class TagQuota(TagSelector):
    """Ours: the share of clients with one tag in every round has a lower and an upper bound.

    The wrapped selector decides within the bounds. If too few clients with or without the tag are available, the
    others fill the round.

    Args:
        inner: The wrapped selector.
        tag: The tag.
        at_least: Smallest share of the selected clients.
        at_most: Largest share of the selected clients.

    Raises:
        BadSetting: `at_least` exceeds `at_most`, or `tag` is not one tag.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedbalancer[clients=TagQuota(tag='tablet', at_most=0.2)]").clients.at_most
        0.2
    """

    own_reactions: ClassVar[frozenset[Private]] = NOTHING

    tag: str = ""
    at_least: Share = 0.0
    at_most: Share = 1.0

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_fields(self)
        if self.at_least > self.at_most:
            raise BadSetting(f"at_least {self.at_least:g} of TagQuota exceeds at_most {self.at_most:g}")
        if self.at_least > 0 or self.at_most < 1:
            _check_tag("TagQuota", self.tag)

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        selected, seen = super().select_clients(setup, state, available), self.unwrapped(state)
        tagged = has_tag(state.ledger, selected, self.tag)
        count, places = int(tagged.sum()), len(selected)
        wanted = min(max(count, math.ceil(self.at_least * places)), max(math.floor(self.at_most * places), 0))
        if wanted == count:
            return selected
        with_tag = available[has_tag(state.ledger, available, self.tag)]
        without = np.setdiff1d(available, with_tag)
        wanted = min(max(wanted, places - len(without)), len(with_tag))
        chosen = [
            self.inner.select_clients(replace(setup, clients_per_round=number), seen, group)[:number]
            for number, group in ((wanted, with_tag), (places - wanted, without))
            if number > 0
        ]
        return np.sort(np.concatenate(chosen))


def _check_tag(policy: str, tag: str) -> None:
    if split_tags(tag) != {tag}:
        raise BadSetting(f"{policy}: tag = {tag!r} must be one tag, such as 'canary'")


def split_tags(text: str) -> frozenset[str]:
    """Return the tags in a text such as `charging+unmetered`.

    Args:
        text: Tags, separated by a plus.
    """
    return frozenset(tag.strip() for tag in text.split("+") if tag.strip())


def tags_of(ledger: Ledger, row: int) -> frozenset[str]:
    """Return the tags of a client.

    Args:
        ledger: The server's ledger.
        row: Row of the client.
    """
    return ledger.tags.get(ledger.clients[row], frozenset())


def has_tag(ledger: Ledger, rows: IndexArray, tag: str) -> NDArray[np.bool_]:
    """Return which clients have a tag.

    Args:
        ledger: The server's ledger.
        rows: Rows of the clients.
        tag: The tag.
    """
    return np.array([tag in tags_of(ledger, row) for row in rows.tolist()], dtype=np.bool_)


def uses_tags(selector: Any) -> bool:
    """Return whether a selector, or one that it wraps, selects by tags.

    Args:
        selector: The selector.
    """
    return isinstance(selector, TagSelector) or (isinstance(selector, Wrapping) and uses_tags(selector.inner))
