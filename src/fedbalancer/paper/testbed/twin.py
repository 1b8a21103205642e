"""The twin of a test bed: the simulator's clock with the latencies that the test bed measured.

For every round of the test bed the twin takes its plan (cohort, deadline, quorum). The simulator's code
(`simulation/attempts.py`) then computes who finishes, after how many epochs, and when the round closes, from each
phone's measured network and batch times. The difference is the error of the simulator and of the test bed.

One difference is inherent: a simulated phone knows how long its upload will take; a phone of the test bed expects the
mean of its last transfers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from fedbalancer.client.policies import ClientPolicies
from fedbalancer.client.round import ClientMemory, ClientRound
from fedbalancer.core.contracts import WorkPolicy
from fedbalancer.core.types import Order, RoundPlan
from fedbalancer.simulation.attempts import RoundClock, close_round, simulate_attempts
from fedbalancer.simulation.devices import AlwaysOn, DeviceDraws

FILE = "twin.json"


@dataclass(frozen=True, eq=False)
class BedRound:
    """One round of the test bed.

    Args:
        plan: Cohort, order and quorum.
        completed: Clients that completed.
        seconds: Duration of the round.
        phones: One row per phone that received its order: `client`, `download_s`, `upload_s`, `batch_s`, `forward_s`,
            `samples`.
    """

    plan: RoundPlan
    completed: frozenset[str]
    seconds: float
    phones: pl.DataFrame


@dataclass(frozen=True)
class TwinRound:
    """One round as predicted by the twin and as measured on the test bed.

    Args:
        round: Number of the round.
        clients: Number of selected clients.
        agreed: Number of clients for which twin and test bed agree whether they complete.
        bed_completed: Clients that completed on the test bed.
        twin_completed: Clients that completed in the twin.
        bed_s: Measured seconds.
        twin_s: Predicted seconds.
    """

    round: int
    clients: int
    agreed: int
    bed_completed: int
    twin_completed: int
    bed_s: float
    twin_s: float


@dataclass(frozen=True)
class Twin:
    """The twin's error over a run.

    `agreement` is the share of clients whose completion it predicts. `mean_error_s` is the mean absolute error of a
    round's seconds, and `mean_error_share` the same as a share of the measured seconds. `clock_error_share` is the
    error of the whole run's seconds (above 0: the test bed was slower).

    Args:
        rounds: The compared rounds.
    """

    rounds: tuple[TwinRound, ...]

    @property
    def agreement(self) -> float:
        clients = sum(r.clients for r in self.rounds)
        return sum(r.agreed for r in self.rounds) / clients if clients else math.nan

    @property
    def mean_error_s(self) -> float:
        return _mean(abs(r.bed_s - r.twin_s) for r in self.rounds)

    @property
    def mean_error_share(self) -> float:
        return self.mean_error_s / _mean(r.bed_s for r in self.rounds) if self.rounds else math.nan

    @property
    def clock_error_share(self) -> float:
        bed_s = sum(r.bed_s for r in self.rounds)
        return (bed_s - sum(r.twin_s for r in self.rounds)) / bed_s if bed_s else math.nan

    def to_json(self) -> dict[str, Any]:
        return {
            "agreement": self.agreement, "mean_error_s": self.mean_error_s, "mean_error_share": self.mean_error_share,
            "clock_error_share": self.clock_error_share, "rounds": [asdict(r) for r in self.rounds],
        }  # fmt: skip

    def words(self) -> str:
        """Return one sentence for people."""
        return (
            f"the simulator predicts {self.agreement:.1%} of the completions, the seconds of a round within "
            f"{self.mean_error_s:.1f} s ({self.mean_error_share:.1%}) and the clock of the run within "
            f"{abs(self.clock_error_share):.1%}"
        )


def twin(rounds: Iterable[BedRound], work: WorkPolicy) -> Twin:
    """Simulate the rounds of a test bed.

    Args:
        rounds: The measured rounds.
        work: The method's work policy.
    """
    return Twin(tuple(_twin_round(bed, work) for bed in rounds))


def _twin_round(bed: BedRound, work: WorkPolicy) -> TwinRound:
    plan = replace(bed.plan, cohort=tuple(bed.phones["client"].to_list()))
    columns = {name: bed.phones[name].to_numpy() for name in ("batch_s", "download_s", "upload_s", "forward_s")}
    # The measured forward pass precedes the training, as the download does.
    draws = DeviceDraws(columns["batch_s"], columns["download_s"] + columns["forward_s"], columns["upload_s"])
    clients = [
        ClientRound(ClientPolicies(work=work), plan.order, client, samples, ClientMemory())  # trains all of them
        for client, samples in zip(plan.cohort, bed.phones["samples"].to_list(), strict=True)
    ]
    attempts = simulate_attempts(clients, draws, plan.order, RoundClock(AlwaysOn(), 0.0))
    accepted, seconds = close_round(plan, attempts)
    predicted = {client for client, taken in zip(plan.cohort, accepted, strict=True) if taken}
    agreed = sum((client in predicted) == (client in bed.completed) for client in bed.plan.cohort)
    return TwinRound(
        plan.order.round, len(bed.plan.cohort), agreed, len(bed.completed), len(predicted), bed.seconds, seconds
    )


def read_rounds(run: Path, phones: pl.DataFrame, order: Order) -> Iterator[BedRound]:
    """Yield the rounds of a test-bed run folder.

    Args:
        run: The run folder.
        phones: The phones' logs.
        order: The parts of an order that all rounds share.
    """
    rounds, clients = (pl.read_parquet(run / f"{name}.parquet", glob=False) for name in ("rounds", "clients"))
    events = _events(run / "log.jsonl")
    planned = {event["round"]: event for event in events if event["event"] == "round"}
    closed = {event["round"]: event for event in events if event["event"] == "round closed"}
    measured = with_measured_transfers(phones, clients)
    for row in rounds.iter_rows(named=True):
        number, mine = row["round"], pl.col("round") == row["round"]
        of_round = replace(order, round=number, loss_threshold=row["loss_threshold"], deadline_s=row["deadline_s"])
        yield BedRound(
            RoundPlan(of_round, tuple(planned[number]["cohort"]), planned[number]["quorum"]),
            frozenset(clients.filter(mine, pl.col("outcome") == "completed")["client"].to_list()),
            float(closed[number]["seconds"]),
            measured.filter(mine),
        )


def with_measured_transfers(phones: pl.DataFrame, clients: pl.DataFrame) -> pl.DataFrame:
    """Replace the phones' network times by measured ones: the server's for reports in time, the phones' for others.

    Download and upload each take half.

    Args:
        phones: The phones' logs.
        clients: The table `clients` of the run.
    """
    arrived = clients.filter(pl.col("outcome") == "completed").select(
        "round", "client", arrived_s=pl.col("download_s") + pl.col("upload_s")
    )
    way_s = pl.coalesce("arrived_s", pl.col("arrives_s") - pl.col("busy_s")) / 2
    joined = phones.join(arrived, on=["round", "client"], how="left")
    return joined.with_columns(download_s=way_s, upload_s=way_s).drop("arrived_s").sort("round", "client")


def _events(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed) if listed else math.nan
