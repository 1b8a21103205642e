"""FedCompass's schedule: clients get as many local steps as let them arrive in groups.

The policy that uses it is `server.late.ArrivalGroups`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.types import ClientReport, FloatArray, Ledger, Weights

LATE = -1
"""Group of a report in the general buffer."""
FASTEST_S = 1e-9


class Group(NamedTuple):
    """An arrival group.

    Args:
        number: Its number.
        expected_s: Second on the run's clock at which its clients are expected.
        latest_s: Second at which it is aggregated without the clients that have not arrived. 0 after that.
    """

    number: int
    expected_s: float
    latest_s: float


class Member(NamedTuple):
    """A client at work.

    Args:
        client: Its id.
        group: Number of its group.
        steps: Its local steps.
        version: Number of aggregations before it received the model.
        started_s: Second at which it started.
    """

    client: str
    group: int
    steps: int
    version: int
    started_s: float


class Held(NamedTuple):
    """A report that waits for its group, or in the general buffer for the next aggregation.

    Args:
        client: The client's id.
        group: Number of its group, or `LATE`.
        version: Number of aggregations before the client received the model.
    """

    client: str
    group: int
    version: int


@dataclass(frozen=True)
class StepRange:
    """The parameters of the schedule; `ArrivalGroups` describes them.

    Args:
        least: Fewest local steps.
        most: Most local steps.
        momentum: Weight of a new measurement of a client's speed.
        late_factor: The latest time of a group, as a multiple of the expected seconds from its start.
    """

    least: int = 20
    most: int = 100
    momentum: float = 0.9
    late_factor: float = 1.5


@dataclass(frozen=True, eq=False)
class Schedule:
    """The state of the schedule between two events: an arrival, or the latest time of a group.

    Args:
        seconds: Estimated seconds per local step of every client, transfers included, by ledger row.
        version: Number of aggregations.
        made: Number of groups made.
        groups: The groups, in the order in which they were made.
        members: The clients at work.
        held: Reports that are not aggregated yet.
        updates: Their updates, one per row.
    """

    seconds: FloatArray
    version: int = 0
    made: int = 0
    groups: tuple[Group, ...] = ()
    members: tuple[Member, ...] = ()
    held: tuple[Held, ...] = ()
    updates: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.float32))

    @property
    def waiting(self) -> tuple[str, ...]:
        """Clients that have arrived and wait for their group."""
        return tuple(client for client, group, _ in self.held if group != LATE)

    def timer_s(self) -> float:
        """Return the earliest latest time of the groups with reports; inf without any."""
        with_reports = {group for _, group, _ in self.held}
        return min((latest_s for number, _, latest_s in self.groups if number in with_reports), default=math.inf)


class Counted(NamedTuple):
    """An update that is aggregated.

    Args:
        client: The client's id.
        update: Its update.
        staleness: Number of aggregations since it received the model.
    """

    client: str
    update: Weights
    staleness: int


class Scheduler:
    """The algorithm of FedCompass on a copy of a `Schedule`.

    Args:
        own: The schedule.
        rule: Its parameters.
        ledger: The server's ledger, for the rows of clients.
    """

    def __init__(self, own: Schedule, rule: StepRange, ledger: Ledger) -> None:
        self.rule, self._ledger = rule, ledger
        joined = len(ledger.clients) - len(own.seconds)
        typical_s = float(np.median(own.seconds)) if len(own.seconds) else 1.0
        self.seconds = np.concatenate([own.seconds, np.full(joined, typical_s)])
        self.version, self.made = own.version, own.made
        self.groups = {row[0]: Group(*row) for row in own.groups}
        self.members = {row[0]: Member(*row) for row in own.members}
        rows = zip(own.held, own.updates, strict=True)
        self.held: list[tuple[Held, Weights]] = [(Held(*row), update) for row, update in rows]

    def schedule(self) -> Schedule:
        """Return the schedule as a value."""
        updates = [update for _, update in self.held]
        stacked = np.stack(updates) if updates else np.zeros((0, 0), dtype=np.float32)
        held = tuple(each for each, _ in self.held)
        return Schedule(
            self.seconds, self.version, self.made, tuple(self.groups.values()), tuple(self.members.values()), held,
            stacked,
        )  # fmt: skip

    def speed_s(self, client: str) -> float:
        """Return the estimated seconds per local step of a client."""
        return max(float(self.seconds[self._ledger.position[client]]), FASTEST_S)

    def start(self, clients: Iterable[str], now_s: float) -> list[int]:
        """Assign clients that start now to groups, the fastest first.

        Args:
            clients: Ids of the clients.
            now_s: Second on the run's clock.

        Returns:
            The local steps of each client.
        """
        clients = list(clients)
        for client in sorted(clients, key=lambda each: (self.speed_s(each), each)):
            group, steps = self._join(client, now_s) or self._create(client, now_s)
            self.members[client] = Member(client, group, steps, self.version, now_s)
        return [self.members[client].steps for client in clients]

    def _join(self, client: str, now_s: float) -> tuple[int, int] | None:
        """Return the group in which a client has the most local steps, and their number; None if none fits."""
        chosen = None
        for group in self.groups.values():
            steps = math.floor((group.expected_s - now_s) / self.speed_s(client))
            if self.rule.least <= steps <= self.rule.most and (chosen is None or steps >= chosen[1]):
                chosen = group.number, steps
        return chosen

    def _create(self, client: str, now_s: float) -> tuple[int, int]:
        """Make a group for a client, timed so that the fastest client of an existing group can join it later."""
        speed_s, steps = self.speed_s(client), -1
        for group in self.groups.values():
            if now_s < group.latest_s:
                fastest_s = min(map(self.speed_s, self._clients_of(group.number)))
                meets_s = group.latest_s + fastest_s * self.rule.most
                fitting = math.floor((meets_s - now_s) / speed_s)
                steps = max(steps, fitting) if fitting <= self.rule.most else steps
        steps = self.rule.most if steps < 0 else max(steps, self.rule.least)
        number, self.made = self.made, self.made + 1
        took_s = steps * speed_s
        self.groups[number] = Group(number, now_s + took_s, now_s + took_s * self.rule.late_factor)
        return number, steps

    def _clients_of(self, number: int) -> list[str]:
        at_work = [each.client for each in self.members.values() if each.group == number]
        return [*at_work, *(each.client for each, _ in self.held if each.group == number)]

    def arrive(self, reports: Sequence[ClientReport], at_work: Collection[str], now_s: float) -> None:
        """Take the reports that arrive now, and forget clients that will not report.

        Args:
            reports: The reports.
            at_work: Ids of the clients whose reports are expected later.
            now_s: Second on the run's clock.
        """
        for report in reports:
            if (member := self.members.pop(report.client, None)) is not None:
                measured_s = (now_s - member.started_s) / member.steps
                row, momentum = self._ledger.position[report.client], self.rule.momentum
                self.seconds[row] = (1 - momentum) * self.seconds[row] + momentum * measured_s
                late = now_s > self.groups[member.group].latest_s
                self.held.append((Held(report.client, LATE if late else member.group, member.version), report.update))
        self.members = {client: each for client, each in self.members.items() if client in at_work}

    def aggregate(self, now_s: float) -> list[Counted]:
        """Close the groups that are complete or late, and return the updates to aggregate.

        The general buffer counts with the first of these groups.

        Args:
            now_s: Second on the run's clock.
        """
        counted: list[Counted] = []
        for group in list(self.groups.values()):
            open_members = any(each.group == group.number for each in self.members.values())
            arrived = any(each.group == group.number for each, _ in self.held)
            if arrived and (not open_members or now_s >= group.latest_s):
                taken = [row for row in self.held if row[0].group in (group.number, LATE)]
                self.held = [row for row in self.held if row[0].group not in (group.number, LATE)]
                counted += [Counted(each.client, update, self.version - each.version) for each, update in taken]
                self.version += 1
                self.groups[group.number] = Group(group.number, 0.0, 0.0)
                arrived = False
            if not open_members and not arrived:
                del self.groups[group.number]
        return counted


def advance(
    own: Schedule, rule: StepRange, ledger: Ledger, started: tuple[Sequence[str], float],
    arrived: tuple[Sequence[ClientReport], Collection[str], float],
) -> tuple[Schedule, list[Counted]]:  # fmt: skip
    """Return the schedule after a round, and the updates to aggregate.

    Args:
        own: The schedule before the round.
        rule: Its parameters.
        ledger: The server's ledger.
        started: The clients that started, and when.
        arrived: The reports that arrived, the clients still at work, and the second at which the round closed.
    """
    scheduler = Scheduler(own, rule, ledger)
    scheduler.start(*started)
    scheduler.arrive(*arrived)
    counted = scheduler.aggregate(arrived[2])
    return scheduler.schedule(), counted


def first_schedule(ledger: Ledger, most: int) -> Schedule:
    """Return the schedule before the first round, with speeds expected from the ledger.

    Args:
        ledger: The ledger before the first round.
        most: Most local steps.
    """
    return Schedule((ledger.network_s + most * ledger.batch_s) / most)
