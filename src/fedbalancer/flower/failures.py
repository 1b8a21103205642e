"""Repeated failures: a client that keeps missing deadlines is paused, a run without usable reports ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedbalancer.core.errors import BadSetting, NoUsableReports
from fedbalancer.core.types import RoundResult

SILENT = "silent"
"""Reason of a client that has not answered when its round closes."""
PATIENCE = 2
"""Consecutive missed deadlines before the first pause."""
MOST_ROUNDS = 16
"""Longest pause in rounds."""
FOR_TIME = ("download", "forward", "train", "upload", SILENT)
"""Reasons of clients that missed the deadline."""
SHOWN = 3
"""Clients whose reason is in the error message."""


class Pauses:
    """Pauses clients that miss deadline after deadline.

    FedBalancer's deadline gives the most reports per second. Where every round has the same clients, it may exclude
    the slowest in every round, and orders that they cannot complete only cost them energy. A pause lasts one round,
    then two, four, up to `MOST_ROUNDS`. A report in time ends it.
    """

    def __init__(self) -> None:
        self._missed: dict[str, int] = {}
        self._until: dict[str, int] = {}

    def update(self, result: RoundResult) -> dict[str, int]:
        """Count the missed deadlines of a round.

        A round without any report is not counted: its deadline was too short for everybody.

        Returns:
            The clients that are paused now, with the last round of their pause.
        """
        if not result.reports:
            return {}
        self.forget(report.client for report in result.reports)
        number, paused = result.plan.order.round, {}
        for client in [missing.client for missing in result.missing if missing.why in FOR_TIME]:
            self._missed[client] = self._missed.get(client, 0) + 1
            if (more := self._missed[client] - PATIENCE) >= 0:
                paused[client] = number + min(2**more, MOST_ROUNDS)
        self._until |= paused
        return paused

    def forget(self, clients: Iterable[str]) -> None:
        """End the pauses of these clients."""
        for client in clients:
            self._missed.pop(client, None)
            self._until.pop(client, None)

    def active(self, clients: Iterable[str], number: int) -> list[str]:
        """Return the clients that are not paused after round `number`; all of them if everybody is paused."""
        everybody = list(clients)
        return [client for client in everybody if self._until.get(client, 0) <= number] or everybody

    def to_json(self) -> dict[str, Any]:
        return {"missed": dict(self._missed), "until": dict(self._until)}

    def load(self, saved: Mapping[str, Any]) -> None:
        self._missed, self._until = dict(saved["missed"]), dict(saved["until"])


class FailedRounds:
    """Ends a run after too many consecutive rounds without a usable report.

    Args:
        most: Number of such rounds that ends the run; None for no limit.
    """

    def __init__(self, most: int | None) -> None:
        self._most, self._count = most, 0

    def check(self, result: RoundResult) -> None:
        """Count a round, unless it had no clients or still waits for late reports.

        Raises:
            NoUsableReports: The limit is reached.
        """
        if result.reports:
            self._count = 0
        elif result.plan.cohort and not result.under_way:
            self._count += 1
            if self._count == self._most:
                raise NoUsableReports(_message(self._count, result))


def check_max_failed_rounds(most: int | None) -> int | None:
    """Return the limit if it is a positive whole number or None."""
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
