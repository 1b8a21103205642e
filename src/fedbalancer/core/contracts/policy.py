"""The base of all policies."""

from __future__ import annotations

from abc import ABC
from typing import Any, ClassVar, Literal, TypeAlias

from fedbalancer.core.fields import check_fields

Private: TypeAlias = Literal["losses", "updates"]
"""Parts of a report that depend on the client's data: the statistics of its losses, and its update."""
NOTHING: frozenset[Private] = frozenset()
LOSSES: frozenset[Private] = frozenset({"losses"})
EVERYTHING: frozenset[Private] = frozenset({"losses", "updates"})


class Policy(ABC):
    """Base of all policies. Derive from the base of a slot, for example `DeadlinePolicy`."""

    slot: ClassVar[str]
    """The name of the slot, for example "deadline"."""

    def __post_init__(self) -> None:
        """Check the fields of the policy against their types and ranges."""
        check_fields(self)

    @property
    def needs_losses(self) -> bool:
        """Whether the policy requires that clients release statistics of their losses."""
        return False

    @property
    def needs_counts(self) -> bool:
        """Whether the policy requires the number of local steps or samples, which a private summary withholds."""
        return False

    @property
    def reacts_to(self) -> frozenset[Private]:
        """The private parts of one client's report that may affect other clients.

        For a server policy: what may change who is selected, their order, or how their updates count. For a sample
        selector: what the number of selected samples depends on. A subclass must declare this again, otherwise
        `reactions` assumes `EVERYTHING`.
        """
        return EVERYTHING

    def refuses(self, method: Any) -> str | None:
        """Return why the policy cannot work with the other policies of a method, or None if it can.

        Args:
            method: The method that the policy is a part of.
        """
        return None
