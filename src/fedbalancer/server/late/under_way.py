"""State of policies that track which clients are still working."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PendingClients:
    """Clients whose reports are still to arrive.

    Args:
        clients: Client ids in order.
    """

    clients: tuple[str, ...] = ()
