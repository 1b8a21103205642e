"""What transport takes: the round trip less what the client was busy, measured for every client."""

from __future__ import annotations

from collections import deque

WINDOW, FEW = 5, 3
ODD = 2.0
"""An overhead so many times the next longest is left out once another has followed: it was a single message."""
JITTER_S = 3.0
"""SuperNodes ask for messages every three seconds, so that one measurement may be so much too lucky."""

WORSE = 0.25
"""Share of the worst overhead that the next may be worse by: a machine that starts a process a message gets busier."""

LEAST_SHARE = 0.1
"""Of its deadline, that a client always gets: one slow round trip must not lock it out for good."""


class Overheads:
    """The last few overheads of every client; `jitter_s` is by how much polling alone may make the next worse."""

    jitter_s = JITTER_S

    def __init__(self) -> None:
        self._seen: dict[str, deque[float]] = {}
        self._greeted: set[str] = set()
        self._carried: set[str] = set()

    def greeted(self, client: str, seconds: float) -> None:
        """Remember the overhead of a greeting, which carries no model: until one was carried it is an assumption."""
        if client not in self._seen:
            self._greeted.add(client)
        self._remember(client, seconds)

    def measured(self, client: str, seconds: float) -> None:
        """Remember the overhead of an order."""
        self.at_least(client, seconds)
        self._greeted.discard(client)

    def at_least(self, client: str, seconds: float) -> None:
        """Remember a lower bound of the overhead of an order that was never answered."""
        if client in self._greeted:
            self._carried.add(client)
        self._remember(client, seconds)

    def take_carried(self) -> set[str]:
        """The clients whose greeting was an assumption until something was learned of an order since the last call."""
        carried, self._carried = self._carried, set()
        return carried

    def _remember(self, client: str, seconds: float) -> None:
        self._seen.setdefault(client, deque(maxlen=WINDOW)).append(max(seconds, 0.0))

    def expected_s(self, client: str) -> float:
        """The worst of late and some more, because the next may be worse: the jitter of Flower's polling, half of how
        much they differ, or a share of the worst, whichever is most. By the mean, half of the reports would come too
        late, and a round closes early anyway when all are in."""
        seen = list(self._seen.get(client, ()))
        if not seen:
            return 0.0
        usual = sorted(seen)
        if len(seen) >= FEW and usual[-1] > ODD * usual[-2] and usual[-1] != seen[-1]:
            usual.pop()
        return usual[-1] + max(self.jitter_s, (usual[-1] - usual[0]) / 2, WORSE * usual[-1])

    def budget_s(self, client: str, round: int, deadline_s: float) -> float:
        """What a client may take from its start to its report, so that this arrives in time."""
        return max(deadline_s - self.expected_s(client), LEAST_SHARE * deadline_s)

    def all_expected_s(self) -> dict[str, float]:
        """What to expect of every client."""
        return {client: self.expected_s(client) for client in self._seen}

    def to_json(self) -> dict[str, list[float]]:
        return {client: list(seen) for client, seen in self._seen.items()}

    def load(self, saved: dict[str, list[float]]) -> None:
        self._seen = {client: deque(seen, maxlen=WINDOW) for client, seen in saved.items()}
