"""What one report gives away about losses, in the terms of a privacy accountant."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

Unit = Literal["sample", "loss", "client"]


@dataclass(frozen=True)
class Release:
    """One release: the deviation of its Gaussian noise over its L2 sensitivity (0: nothing is hidden, infinite: nothing
    is told) and what may change between two data sets that shall look alike.

    `unit` is "client" for all of a client's data, "sample" for one of its samples, added or removed, and "loss" for one
    entry of its loss list. The last is weaker: in a list that was filled while training, a sample also moves the losses
    of those trained after it, which no bound covers.
    """

    mechanism: str
    noise_multiplier: float
    unit: Unit = "loss"


def release_of(client: Any) -> Release:
    """What the summary of a method's client half releases. A summary of somebody's own that says nothing about itself
    is taken to hide nothing."""
    summary = client.summary
    told = getattr(summary, "release", None)
    if told is None:
        return Release(type(summary).__name__, 0.0)
    found: Release = told(forward_pass_every_round(client))
    return found


def forward_pass_every_round(client: Any) -> bool:
    """Whether the summary is of the losses of the model that was received, taken by a forward pass of its own in every
    round: then each loss hangs on its own sample and on what the server knows already, and on nothing else."""
    return client.forward_pass == "every" and bool(getattr(client.summary, "of_received_model", False))


NOTHING_TOLD = math.inf
"""The noise multiplier of a summary without losses."""
