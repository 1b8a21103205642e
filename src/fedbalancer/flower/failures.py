"""Clients that miss deadline after deadline are asked less and less often.

FedBalancer's deadline is the one with the most reports per second, which may leave the slowest clients out for good
where every round has the same clients. Orders that cannot be carried out in time only cost those clients energy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedbalancer.core.errors import BadSetting, NoUsableReports
from fedbalancer.core.types import RoundResult
from fedbalancer.flower.open_round import SILENT

PATIENCE = 2
"""Deadlines that a client misses in a row before it is paused for the first time."""
MOST_ROUNDS = 16
FOR_TIME = ("download", "forward", "train", "upload", SILENT)
"""Why a client is missing that could not meet the deadline."""


class Pauses:
    """By client the deadlines missed in a row, and the last round of its pause: one round, then two, four, up to
    `MOST_ROUNDS`. A report in time ends the count."""

    def __init__(self) -> None:
        self._missed: dict[str, int] = {}
        self._until: dict[str, int] = {}

    def update(self, result: RoundResult) -> dict[str, int]:
        """Count the misses of a round; returns who is paused, and until which round. In a round that nobody finished
        the deadline was too short for everybody, and nothing is counted."""
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
        """End the pauses of clients that have restarted."""
        for client in clients:
            self._missed.pop(client, None)
            self._until.pop(client, None)

    def active(self, clients: Iterable[str], number: int) -> list[str]:
        """Those of the clients that may take part in the round after `number`; all, if everybody is paused."""
        everybody = list(clients)
        return [client for client in everybody if self._until.get(client, 0) <= number] or everybody

    def to_json(self) -> dict[str, Any]:
        return {"missed": dict(self._missed), "until": dict(self._until)}

    def load(self, saved: Mapping[str, Any]) -> None:
        self._missed, self._until = dict(saved["missed"]), dict(saved["until"])


SHOWN = 3
"""Clients whose reason is in the message."""


class FailedRounds:
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


def check_max_failed_rounds(most: int | None) -> int | None:
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
