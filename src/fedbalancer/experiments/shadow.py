"""Shadow policies: the rounds of a run, replayed for their timing under other methods, deadlines and selections.

The rounds of a recorded run are simulated again with another method and nothing is trained. A client that took part in
the recorded round has the seconds that it had then. What the run does not know has bounds: a client that was not
selected or did not answer is replayed with its fast and with its slow seconds, and several selections are tried if
the method selects other clients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedbalancer.core.errors import BadSetting, FedBalancerError
from fedbalancer.core.settings import RUN_KEYS, Settings, resolve
from fedbalancer.core.types import Ledger
from fedbalancer.experiments.recording import Recording, read_recording
from fedbalancer.experiments.shadow_engine import RecordedTimes, ShadowDevices, ShadowEngine
from fedbalancer.methods.names import canonical_name
from fedbalancer.methods.table import Method, method_of_run, setup_of
from fedbalancer.server.loop import rounds as run_rounds
from fedbalancer.server.server import Server
from fedbalancer.simulation.devices import AlwaysOn
from fedbalancer.simulation.executors import InlineExecutor
from fedbalancer.simulation.local_costs import needs_costs
from fedbalancer.store import read_manifest
from fedbalancer.training.timing_only import TimingOnly

METHODS = ("fedavg+wfa", "fedavg+1t", "fedbalancer", "canter")
LAST, RECENT, SELECTIONS = 100, 20, 3
"""Defaults: the last rounds that are replayed, those of a status, and the selections that are tried."""
EXPECTED = {"fast": 0.95, "typical": 1.0, "slow": 1.05}
"""Factors of the seconds that the server expects, from which deadlines follow: a recording has them only roughly."""
FAR_APART = 2.0
"""Bounds with a larger ratio are shown without a typical value."""
WORTHWHILE, ENOUGH_REPORTS = 0.05, 0.9
"""Least share of time that a recommendation saves, and least share of the recorded reports that it keeps."""


@dataclass(frozen=True)
class ShadowRow:
    """The recorded rounds under one method.

    Args:
        method: The method.
        low_s: Lower bound of the seconds of all rounds.
        typical_s: The seconds with typical times for what is unknown.
        high_s: Upper bound.
        known: Share of the replayed client rounds whose seconds were recorded.
        reports: Reports per round, at the upper bound of the seconds.
        batches_per_hour: Batches that reports contain, per hour, at the upper bound of the seconds.
        same_clients: Whether the recorded clients are replayed, because the method selects as the recorded one.
    """

    method: str
    low_s: float
    typical_s: float
    high_s: float
    known: float
    reports: float
    batches_per_hour: float
    same_clients: bool

    def in_words(self) -> str:
        """Return the seconds with their bounds, or only the bounds if they are far apart."""
        low, typical, high = (in_hours(seconds) for seconds in (self.low_s, self.typical_s, self.high_s))
        if self.high_s > FAR_APART * self.low_s:
            return f"{low} to {high}"
        return typical if low == high else f"{typical} ({low} to {high})"

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Shadow:
    """Recorded rounds and what they would have taken under other methods.

    Args:
        method: The recorded method.
        rounds: Number of replayed rounds.
        recorded_s: Their recorded seconds.
        replayed_s: Their seconds when the recorded method is replayed. The difference is the error of the replay.
        reports: Recorded reports per round.
        batches_per_hour: Recorded batches that reports contained, per hour.
        rows: The methods.
    """

    method: str
    rounds: int
    recorded_s: float
    replayed_s: float
    reports: float
    batches_per_hour: float
    rows: tuple[ShadowRow, ...] = field(default=())

    @property
    def error(self) -> float:
        """Error of the replay as a share of the recorded seconds. The bounds contain it."""
        return abs(self.replayed_s / self.recorded_s - 1) if self.recorded_s else math.nan

    def why_not(self, row: ShadowRow) -> str:
        """Return why a method is not recommended; "" if it is.

        Args:
            row: The method.
        """
        if row.high_s > (1 - WORTHWHILE) * self.recorded_s:
            return "its upper bound saves no time"
        if row.reports < ENOUGH_REPORTS * self.reports:
            return f"it may receive fewer reports ({row.reports:.1f} instead of {self.reports:.1f} per round)"
        if row.batches_per_hour < self.batches_per_hour:
            return "it may train fewer batches per hour"
        return ""

    @property
    def recommendation(self) -> str | None:
        """The method with the lowest upper bound of all that are certain to save time; None if none is."""
        safe = [row for row in self.rows if row.method != self.method and not self.why_not(row)]
        return min(safe, key=lambda row: (row.high_s, row.method)).method if safe else None

    def lines(self) -> list[str]:
        """Return one sentence per method and, if the bounds support it, a recommendation."""
        took = in_hours(self.recorded_s)
        shown = [
            f"with {row.method} the last {self.rounds} rounds would have taken {row.in_words()} instead of {took}; "
            f"{row.known:.0%} of the client rounds are recorded"
            for row in self.rows
            if row.method != self.method
        ]
        best = self.recommendation
        return [*shown, f"recommended: {best}"] if best else [*shown, "no recommendation: no bound supports one"]

    def to_json(self) -> dict[str, Any]:
        return {
            **{name: value for name, value in vars(self).items() if name != "rows"}, "error": self.error,
            "recommendation": self.recommendation,
            "methods": [{**row.to_json(), "why_not": self.why_not(row)} for row in self.rows],
        }  # fmt: skip


def in_hours(seconds: float) -> str:
    """Return seconds in the unit in which they are easy to compare.

    Example:
        >>> in_hours(90), in_hours(5000), in_hours(350000)
        ('90 s', '83 min', '97 h')
    """
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 4 * 3600 else f"{seconds / 3600:.0f} h"


def shadow(
    folder: Path | str, methods: Sequence[str] = METHODS, *, last: int | None = LAST, selections: int = SELECTIONS
) -> Shadow:
    """Replay the rounds of a run under other methods, for their timing. The run may still be running.

    Args:
        folder: The run folder.
        methods: Names of the methods.
        last: Number of rounds to replay, counted from the end. Default: 100; None for all.
        selections: Selections that are tried for a method that selects other clients.

    Returns:
        The seconds of these rounds under every method, with bounds.

    Raises:
        BadSetting: If a method cannot be replayed.
        RunFolderError: If the folder is not that of a run.

    Example:
        >>> import fedbalancer as fb, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> result = fb.run("synthetic", "fedavg+wfa", users=8, rounds=4, timing_only=True, out=folder, overwrite=True)
        >>> shadow(folder, ["fedavg+wfa", "fedavg[deadline=.5T]"]).rounds
        4
    """
    if selections < 1 or (last is not None and last < 1):
        raise BadSetting(f"last = {last} and selections = {selections} must be at least 1")
    record = read_recording(folder)
    names = tuple(canonical_name(name) for name in methods)
    stamp = (record.rounds.height, float(record.rounds["end_s"].max()))  # type: ignore[arg-type]
    return _shadow(str(Path(folder).absolute()), stamp, names, last, selections)


def shadow_lines(folder: Path | str, last: int = RECENT) -> list[str]:
    """Return what the last rounds of a run on Flower would have taken with other methods, for its status and its page.

    Args:
        folder: The run folder.
        last: Number of rounds.

    Returns:
        A sentence per method; nothing for a simulated run, a run without rounds, or one that cannot be replayed.
    """
    try:
        if read_manifest(Path(folder)).get("engine") != "flower":
            return []
        return shadow(folder, last=last).lines()
    except FedBalancerError:
        return []


@lru_cache(maxsize=16)
def _shadow(folder: str, stamp: tuple[int, float], names: tuple[str, ...], last: int | None, selections: int) -> Shadow:
    """Replay once per state of the folder: a page that refreshes asks often."""
    record = read_recording(folder)
    if last is not None:
        first = int(record.rounds["round"].max()) - last  # type: ignore[arg-type]
        record = replace(record, rounds=record.rounds.filter(pl.col("round") > first),
                         clients=record.clients.filter(pl.col("round") > first))  # fmt: skip
    times = RecordedTimes.of(record)
    settings = _settings(record)
    own_name = str(record.manifest.get("method", ""))
    own = _method(own_name, settings)
    recorded_s = float(record.seconds.sum())
    counted = record.clients.filter(pl.col("outcome").is_in(["completed", "joined"]))
    replayed_s, error = recorded_s, 0.0
    if own is not None:
        replayed_s = _replay(record, times, settings, own, own, "typical", 0).seconds
        error = abs(replayed_s / recorded_s - 1) if recorded_s else 0.0
    rows = tuple(_row(record, times, settings, name, own, error, selections) for name in names)
    return Shadow(
        own_name, record.rounds.height, recorded_s, replayed_s, counted.height / record.rounds.height,
        float(counted["batches"].sum()) / max(recorded_s, 1e-9) * 3600, rows,
    )  # fmt: skip


def _row(
    record: Recording, times: RecordedTimes, settings: Settings, name: str, own: Method | None, error: float,
    selections: int,
) -> ShadowRow:  # fmt: skip
    chosen = _method(name, settings)
    if chosen is None:
        raise BadSetting(f"method {name} cannot be replayed: its clients train a part of the model or for other costs")
    same = own is not None and chosen.server.clients == own.server.clients
    tried = range(1 if same else selections)
    replays = {
        kind: [_replay(record, times, settings, chosen, own, kind, number) for number in tried]
        for kind in ("fast", "typical", "slow")
    }
    slow = replays["slow"]
    seconds = [each.seconds for tries in replays.values() for each in tries]
    return ShadowRow(
        name,
        low_s=min(seconds) * (1 - min(error, 1.0)),
        typical_s=float(np.median([each.seconds for each in replays["typical"]])),
        high_s=max(seconds) * (1 + error),
        known=float(np.mean([each.known for each in replays["typical"]])),
        reports=min(each.reports for each in slow),
        batches_per_hour=min(each.batches / max(each.seconds, 1e-9) for each in slow) * 3600 / (1 + error),
        same_clients=same,
    )


def _settings(record: Recording) -> Settings:
    """Return the settings of the run, without the fields of its method's policies."""
    recorded = record.manifest.get("settings", {})
    text = {name: recorded[name] for name in RUN_KEYS if name in recorded}
    if isinstance(text.get("learning_rate"), str):
        text.pop("learning_rate")  # a function of the user; it does not change the timing
    return resolve({name: value for name, value in text.items() if name not in ("attacks", "availability")})


def _method(name: str, settings: Settings) -> Method | None:
    """Return a method that can be replayed; None if it cannot, or is not known here."""
    try:
        chosen = method_of_run(name, settings)
    except FedBalancerError:
        if name in ("", "stock"):
            return None
        raise
    return None if needs_costs(chosen.client) else chosen


@dataclass(frozen=True)
class Replay:
    """The outcome of one replay."""

    seconds: float
    known: float
    reports: float
    batches: float


def _replay(
    record: Recording, times: RecordedTimes, settings: Settings, chosen: Method, own: Method | None, kind: str,
    selection: int,
) -> Replay:  # fmt: skip
    """Replay all recorded rounds once."""
    numbers = record.rounds["round"].to_list()
    first, count = int(numbers[0]), len(numbers)
    seconds = dict(zip(numbers, record.seconds.tolist(), strict=True))
    devices = ShadowDevices(times, kind, first, seconds)
    clients = times.clients
    batch_s = np.array([times.bounds[client][1][0] for client in clients])
    factor = EXPECTED[kind]
    ledger = Ledger.start(clients, times.sizes, factor * times.network_s, factor * batch_s[:, None])
    same = own is not None and chosen.server.clients == own.server.clients
    cohorts = {
        int(number): each["client"].to_list()
        for (number,), each in record.clients.filter(pl.col("outcome") != "joined").group_by(["round"])
    }
    engine = ShadowEngine(
        times, first, cohorts if same else None,
        knows_samples=own is not None and chosen.client.samples == own.client.samples, is_fast=kind == "fast",
        policies=chosen.client, ledger=ledger,
        executor=InlineExecutor(TimingOnly(dict(zip(clients, times.sizes.tolist(), strict=True)))), devices=devices,
        availability=AlwaysOn(), model_bytes=int(record.down_bytes), up_bytes=int(record.up_bytes),
        window_s=record.window_s(),
    )  # fmt: skip
    settings = settings.model_copy(update={"clients_per_round": min(settings.clients_per_round, len(clients))})
    seed = int(record.manifest.get("seed") or 0) + selection
    server = Server(chosen.server, setup_of(chosen, ledger, settings, seed))
    state = server.init(np.empty(0, dtype=np.float32))
    known = asked = reports = 0
    batches = 0.0
    for after, result in run_rounds(server, engine, state, lambda now: now.round >= count):
        state, number = after, first + after.round - 1
        asked += len(result.plan.cohort)
        known += sum((number, client) in times.draws for client in result.plan.cohort)
        reports += len(result.reports)
        batches += sum(each.timings.train_s / each.summary.batch_s for each in result.reports if each.summary.batch_s)
    return Replay(state.clock_s, known / max(asked, 1), reports / count, batches)
