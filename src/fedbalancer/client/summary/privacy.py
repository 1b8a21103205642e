"""What a summary releases, and the counts that a private summary withholds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fedbalancer.core.types import ClientReport, Release, Summary


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


def without_counts(summary: Summary) -> Summary:
    """The summary without the number of samples trained, and with the seconds of a batch in two digits."""
    return replace(summary, trained=0, batch_s=coarse(summary.batch_s))


def coarse(seconds: float) -> float:
    """Seconds in two significant digits, rounded down.

    >>> coarse(0.12987), coarse(1499.0), coarse(0.0)
    (0.12, 1400.0, 0.0)
    """
    if not 0 < seconds < math.inf:
        return seconds
    digits = 1 - math.floor(math.log10(seconds))
    return max(min(round(math.floor(seconds * 10.0**digits) / 10.0**digits, digits), seconds), 1e-9)


def with_estimates(
    reports: Sequence[ClientReport], size_of: Callable[[str], int], policies: Any
) -> tuple[ClientReport, ...]:
    """The reports of a round with the server's estimate of how many samples each client trained: those that it has, as
    far as it enrolled with them, times the share over the threshold in all noisy summaries of the round together if
    samples are selected by it. It uses what was released only, so it costs no privacy."""
    summary = policies.summary
    over_share = summary.over_share([report.summary for report in reports]) if policies.samples.by_threshold else 1.0
    share = min(max(over_share, 0.0), 1.0)

    def estimated(report: ClientReport) -> ClientReport:
        size = size_of(report.client)
        told = replace(report.summary, trained=max(round(share * size), 1), estimated=True)
        return replace(report, summary=replace(told, loss_count=float(size)) if summary.sums_all_losses else told)

    return tuple(map(estimated, reports))
