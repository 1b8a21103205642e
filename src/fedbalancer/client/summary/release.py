"""What one report gives away about losses, in the terms of a privacy accountant."""

from __future__ import annotations

import math
from typing import Any

from fedbalancer.core.types import Release


def release_of(client: Any) -> Release:
    """What the summary of a method's client half releases. A summary of somebody's own that says nothing about itself
    is taken to hide nothing."""
    release: Release = client.summary.release(forward_pass_every_round(client))
    return release


def forward_pass_every_round(client: Any) -> bool:
    """Whether the summary is of the losses of the model that was received, taken by a forward pass of its own in every
    round: then each loss hangs on its own sample and on what the server knows already, and on nothing else."""
    return client.forward_pass == "every" and bool(client.summary.of_received_model)


NOTHING_TOLD = math.inf
"""The noise multiplier of a summary without losses."""
