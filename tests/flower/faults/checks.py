"""Checks after a fault, computed from the run folder and the clients' journals."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from flower.faults.bed import lines
from numpy.typing import NDArray

OVERHEAD_S = 1.0
"""What a round may take beyond its deadline: the stated limit. The page says what it really took."""
DEADLINE_S = float(os.environ.get("FAULTS_DEADLINE_S", "15"))
"""Deadline of a round; longer if many processes start at once."""
SETTLED = 1 / 3
"""A good client's report that left this share of the deadline before the end of the round must count."""

Line = dict[str, Any]
GOOD = ("good0", "good1")
"""Clients that only ever do what they should."""

UNHARMED = ("clock-fast", "clock-slow", "twice")
"""Faults of a client whose own report still counts, and counts once."""
EITHER = ("node-after", "server-app", "superlink")
"""Faults that may come before or after the report has left."""
GONE = (
    "kill-before",
    "kill-during",
    "kill-after",
    "exit",
    "sleep",
    "node-before",
    "node-during",
    "node-after",
    "node-key",
    "hang",
)
NAMED_BY = {"raise": "error", "late": "late reply", **dict.fromkeys(GONE, "missing")}
"""The event that names the offender; all others are named by `invalid`."""
LATE, STOPPED = "late reply", "stopped at the deadline"


@dataclass(frozen=True)
class Verdict:
    """How one fault went: what it was, in which round, what was wrong with the aftermath (nothing, if it survived),
    how the log named the offender, the deadline of the round, and by how many seconds it was passed."""

    fault: str
    client: str
    round: int
    wrong: tuple[str, ...]
    named: str
    deadline_s: float
    overhead_s: float


@dataclass(frozen=True)
class Evidence:
    """A run folder, the clients' journals and the models of all rounds, after the end."""

    run: Path
    journals: Path
    models: Path

    @cached_property
    def log(self) -> list[Line]:
        return lines(self.run / "log.jsonl")

    @cached_property
    def journal(self) -> list[Line]:
        return [line for file in sorted(self.journals.glob("*.jsonl")) for line in lines(file)]

    @cached_property
    def model_of(self) -> dict[int, Line]:
        """The model after every round; that of the last time, where a killed server had to do a round again."""
        return {line["round"]: line for line in lines(self.models)}

    @cached_property
    def outcome(self) -> dict[tuple[int, str], str]:
        rows = pl.read_parquet(self.run / "clients.parquet").select("round", "client", "outcome").rows()
        return {(round, client): outcome for round, client, outcome in rows}

    def named(self, client: str, round: int) -> list[str]:
        """Return the log lines about a client in a round."""
        said = [line for line in self.log if line.get("client") == client and line.get("round") == round]
        return [f"{line['event']}: {line.get('why') or line.get('what') or ''}".rstrip(": ") for line in said]

    def arrived(self, client: str, round: int) -> bool:
        """Whether anything of a client was there, good or bad, before the round closed or soon after."""
        return self.outcome.get((round, client)) != "silent" or any(
            text.startswith(LATE) for text in self.named(client, round)
        )

    def overhead_s(self, round: int) -> float:
        """Seconds that a round took beyond its deadline, negative where all were in before it."""
        closed = [line for line in self.log if line["event"] == "round closed" and line["round"] == round]
        return float(closed[-1]["seconds"]) - self.deadline_s(round) if closed else math.nan

    def deadline_s(self, round: int) -> float:
        opened = [line for line in self.log if line["event"] == "round" and line["round"] == round]
        return float(opened[-1]["deadline_s"])

    def resumed(self) -> list[int]:
        """Return the rounds after which the run resumed."""
        return [line["round"] for line in self.log if line["event"] == "resumed" and "round" in line]

    @property
    def rounds(self) -> list[int]:
        return [int(number) for number in pl.read_parquet(self.run / "rounds.parquet")["round"]]

    def wrong_run(self, rounds: int) -> list[str]:
        """Return the problems of the whole run."""
        manifest = json.loads((self.run / "manifest.json").read_text())
        wrong = [] if manifest["status"] == "done" else [f"the run is {manifest['status']}: {manifest.get('why')}"]
        if self.rounds != list(range(1, rounds + 1)):
            wrong.append(f"it has rounds {self.rounds}")
        if not all(np.isfinite(line["model"]).all() for line in self.model_of.values()):
            wrong.append("a model is not finite")
        return wrong

    def wrong_round(self, round: int) -> list[str]:
        """Return the problems of a round."""
        wrong = []
        if not self.overhead_s(round) <= OVERHEAD_S:
            wrong.append(f"it took {self.overhead_s(round):.2f} s more than its deadline")
        counted = sorted(
            client for (number, client), how in self.outcome.items() if (number, how) == (round, "completed")
        )
        if not self._explained(round, counted):
            wrong.append(f"the model is not the mean of the reports of {', '.join(counted)}, each counted once")
        lost = [line["client"] for line in self._in_time(round) if line["client"] not in counted]
        return [*wrong, *(f"the report of {client} is lost" for client in lost)]

    def _in_time(self, round: int) -> list[Line]:
        """Reports of good clients that left well before the round closed."""
        if round not in self.model_of:
            return []
        closed_s = self.model_of[round]["at_s"] - SETTLED * self.deadline_s(round)
        sent = [line for line in self._sent(round) if line["client"] in GOOD and line["at_s"] < closed_s]
        return [line for line in sent if line["run"] == self.run_of(round)]

    def run_of(self, round: int) -> int | None:
        """Flower's id of the run in which a round was done for good."""
        runs = {line["run"]: line["at_s"] for line in self.journal if line["round"] == round}
        return max(runs, key=lambda run: runs[run], default=None)

    def _sent(self, round: int) -> list[Line]:
        return [line for line in self.journal if line["what"] == "sent" and line["round"] == round]

    def _explained(self, round: int, counted: list[str]) -> bool:
        """Whether one report of every counted client, each counted once by its weight, makes the model of the round.

        A client may have sent more than one where a server was killed and the round was done again."""
        if round not in self.model_of or round - 1 not in self.model_of:
            return False
        before, after = (np.array(self.model_of[number]["model"]) for number in (round - 1, round))
        return any(np.allclose(mean, after, atol=1e-5) for mean in self._means(round, counted, before))

    def _means(self, round: int, counted: list[str], before: NDArray[Any]) -> Iterator[NDArray[Any]]:
        if not counted:
            yield before
            return
        sent = [[line for line in self._sent(round) if line["client"] == client] for client in counted]
        for chosen in itertools.product(*sent):
            weights = [line["weight"] for line in chosen]
            yield before + np.average([line["update"] for line in chosen], axis=0, weights=weights)


def verdict_of(evidence: Evidence, rounds: int, fault: str, client: str, round: int) -> Verdict:
    """All checks of one fault. `client` is the offender, "" where it was the server that was killed."""
    wrong = [*evidence.wrong_run(rounds), *evidence.wrong_round(round)]
    resumed = [] if fault == "locked" else [f"resumed: after rounds {evidence.resumed()}"]
    said = evidence.named(client, round) if client else resumed
    if client:
        wrong += _wrong_client(fault, client, evidence.outcome.get((round, client), "not asked"), said)
    times = (evidence.deadline_s(round), evidence.overhead_s(round))
    return Verdict(fault, client, round, tuple(wrong), "; ".join(said), *times)


def _wrong_client(fault: str, client: str, outcome: str, said: list[str]) -> list[str]:
    """What is wrong with what became of the offender. Whatever it did, it may have done it too late for the round: the
    log says so, and that is what it then must say."""
    if fault in UNHARMED:
        fine = outcome == "completed" or any(text.startswith(LATE) for text in said)
        return [] if fine else [f"its own report did not count: {outcome}, {said}"]
    if outcome == "completed":
        return [] if fault in EITHER else [f"{client} counted"]
    also = [*(["error"] if fault in GONE else []), *([STOPPED] if fault in EITHER else [])]
    events = (NAMED_BY.get(fault, "invalid"), LATE, *also)
    return [] if any(text.startswith(events) for text in said) else [f"no {events[0]!r} names {client}: {said}"]
