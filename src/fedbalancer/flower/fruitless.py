"""Stops a run in which nobody sends a usable report any more."""

from __future__ import annotations

from fedbalancer.core.errors import BadSetting, NoUsableReports
from fedbalancer.core.types import RoundResult

SHOWN = 3
"""Clients whose reason is in the message."""


class FruitlessRounds:
    """Counts rounds in a row without a usable report. `most` of them end the run; None never does."""

    def __init__(self, most: int | None) -> None:
        self._most, self._count = most, 0

    def check(self, result: RoundResult) -> None:
        """Count a round. One that asked nobody, or whose late reports will still count, says nothing."""
        if result.reports:
            self._count = 0
        elif result.plan.cohort and not result.under_way:
            self._count += 1
            if self._count == self._most:
                raise NoUsableReports(_message(self._count, result))


def checked_limit(most: int | None) -> int | None:
    """The limit, if it is a positive whole number or None."""
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise BadSetting(f"max_failed_rounds must be a whole number >= 1, or None for no limit; got {most!r}")
    return most


def _message(count: int, result: RoundResult) -> str:
    last, deadline_s = result.plan.order.round, result.plan.order.deadline_s
    reasons = [f"client {missing.client!r}: {missing.problem or missing.why}" for missing in result.missing]
    more = f" and {len(reasons) - SHOWN} more" if len(reasons) > SHOWN else ""
    return (
        f"no usable report in {count} rounds in a row (rounds {last - count + 1} to {last}); in round {last}, with a "
        f"deadline of {deadline_s:.1f} s: {'; '.join(reasons[:SHOWN])}{more}. Correct the clients, then start the run "
        "again with the same run_key to continue it; max_failed_rounds sets the limit"
    )
