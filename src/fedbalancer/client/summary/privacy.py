"""Releases of a summary, and the counts that a private summary withholds.

The number of trained samples depends on the losses if samples are selected by loss, and so do the epochs that fit the
deadline. Exact counts beside a noisy summary would reveal what the noise hides. So the client withholds them, every
update has weight 1, and the server estimates the counts from the noisy numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fedbalancer.core.types import ClientReport, Release, Summary
from fedbalancer.core.wrapping import reactions


def release_of(client: Any) -> Release:
    """Return what the summary of a method's client policies releases.

    The noise of the summary protects nothing if the client also sends arrays or reacts to its data in a way that the
    policies in slots `train` and `part` do not declare.

    Args:
        client: The `ClientPolicies`.
    """
    release: Release = client.summary.release(forward_pass_every_round(client))
    return replace(release, noise_multiplier=0.0) if undeclared_training(client) else release


def undeclared_training(client: Any) -> str:
    """Return the names of the policies in slots `train` and `part` that may reveal a client's data; "" for none.

    Args:
        client: The `ClientPolicies`.
    """
    return ", ".join(type(policy).__name__ for policy in (client.train, client.part) if reactions(policy))


def forward_pass_every_round(client: Any) -> bool:
    """Whether the summary describes the received model, from a forward pass in every round.

    Each loss then depends only on its own sample and on what the server knows already.

    Args:
        client: The `ClientPolicies`.
    """
    return client.forward_pass == "every" and bool(client.summary.of_received_model)


NO_INFORMATION = math.inf
"""Noise multiplier of a summary without losses."""


def without_counts(summary: Summary) -> Summary:
    """Return the summary without the number of trained samples, with batch seconds in two digits."""
    return replace(summary, trained=0, batch_s=coarse(summary.batch_s))


def coarse(seconds: float) -> float:
    """Round seconds down to two significant digits.

    Example:
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
    """Return reports with the server's estimate of how many samples each client trained.

    The estimate uses released numbers only, so it costs no privacy: the enrolled samples, times the share over the
    threshold in all noisy summaries of the round if samples are selected by threshold.

    Args:
        reports: Reports of a round.
        size_of: Returns the enrolled number of samples of a client.
        policies: The `ClientPolicies`.
    """
    summary = policies.summary
    over_share = summary.over_share([report.summary for report in reports]) if policies.samples.by_threshold else 1.0
    share = min(max(over_share, 0.0), 1.0)

    def estimate(report: ClientReport) -> ClientReport:
        size = size_of(report.client)
        summary_with_count = replace(report.summary, trained=max(round(share * size), 1), estimated=True)
        if summary.sums_all_losses:
            summary_with_count = replace(summary_with_count, loss_count=float(size))
        return replace(report, summary=summary_with_count)

    return tuple(map(estimate, reports))
