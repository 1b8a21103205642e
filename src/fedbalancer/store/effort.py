"""What a round costs the phones: the seconds that they are busy, and the samples that they train, in vain or not.

A client that misses the deadline works until then; one that is late for the quorum sends its update all the same.
"""

from __future__ import annotations

from fedbalancer.core.sums import total
from fedbalancer.core.types import ClientReport, FailedClient, Order, RoundResult

LATE = "late"
"""Why a client is missing that finished after the quorum was full."""


def device_s(result: RoundResult) -> float:
    """Seconds that all devices of the cohort were busy: download, forward pass, training and upload."""
    made_it = total(_busy_s(report) for report in result.reports)
    deadline_s = result.plan.order.deadline_s
    return made_it + total(
        _busy_s(each) if each.why == LATE else min(_busy_s(each), deadline_s) for each in result.missing
    )


def sample_passes(result: RoundResult) -> float:
    """Samples times epochs, trained by all of the cohort."""
    order = result.plan.order
    made_it = total(_an_epoch(report.summary.trained, order) * max(report.epochs, 1.0) for report in result.reports)
    return made_it + total(_wasted(missing, order) for missing in result.missing)


def _busy_s(client: ClientReport | FailedClient) -> float:
    """Without the time in which the device was not available."""
    spent = client.timings
    return spent.download_s + spent.forward_s + spent.train_s + spent.upload_s


def _an_epoch(samples: int, order: Order) -> int:
    """Samples that one epoch trains. Of a client that trained less than one epoch, `samples` are those it saw."""
    return samples if order.epoch_batches is None else min(samples, order.epoch_batches * order.batch_size)


def _wasted(missing: FailedClient, order: Order) -> float:
    """Sample passes of a client that did not make it: those that it had time for."""
    spent = missing.timings
    if spent.train_s <= 0:
        return 0.0
    left_s = order.deadline_s - spent.download_s - spent.forward_s
    share = 1.0 if missing.why == LATE else min(max(left_s / spent.train_s, 0.0), 1.0)
    return share * order.epochs * _an_epoch(missing.samples, order)
