"""The simulator with recorded seconds: devices that take as long as they took, and clients that were there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from fedbalancer.client.round import ClientRound
from fedbalancer.client.samples import EverySample
from fedbalancer.core.types import FloatArray, IndexArray, Order
from fedbalancer.experiments.recording import ABSENT, Recording
from fedbalancer.simulation.devices import DeviceDraw
from fedbalancer.simulation.engine import SimulatedEngine

FAST, SLOW = 0.05, 0.95
"""Quantiles of a client's measured seconds that bound an unknown round."""
TIMEOUT_S = 3600.0
"""Seconds after which a client without an answer counts as slow: the longest round of a `Strategy`."""


@dataclass(frozen=True, eq=False)
class RecordedTimes:
    """The recorded seconds of every client, and bounds of those that were not recorded.

    Args:
        clients: All clients, sorted.
        sizes: Their numbers of samples.
        network_s: Expected seconds of download and upload, as the server knew them.
        draws: Recorded seconds by (round, client).
        samples: Selected samples by (round, client).
        bounds: Fast, typical and slow seconds per batch, of the download and of the upload, by client.
        absent: (round, client) of orders without an answer.
    """

    clients: tuple[str, ...]
    sizes: IndexArray
    network_s: FloatArray
    draws: Mapping[tuple[int, str], DeviceDraw]
    samples: Mapping[tuple[int, str], int]
    bounds: Mapping[str, FloatArray]
    absent: frozenset[tuple[int, str]]

    @classmethod
    def of(cls, record: Recording) -> RecordedTimes:
        """Collect the times of a recording."""
        table = record.clients.with_columns(size=pl.col("all_batches").clip(1))
        ledger = record.ledger
        names = tuple(sorted({*table["client"].to_list(), *ledger}))
        largest = dict(table.group_by("client").agg(pl.col("samples").max()).iter_rows())
        sizes = [ledger[name][1] if name in ledger else int(largest.get(name, 1)) for name in names]
        columns = ("batch_s", "download_s", "upload_s")
        bounds = _bounds(table, names, columns, {name: row[0] for name, row in ledger.items()})
        typical = {name: bounds[name][1] for name in names}
        network_s = [
            ledger[name][2] if name in ledger and not record.is_simulated else typical[name][1] + typical[name][2]
            for name in names
        ]
        known = table.filter(pl.col("batch_s").is_not_null() & (pl.col("download_s") + pl.col("upload_s") > 0))
        draws = {
            (number, client): DeviceDraw(batch_s, down_s, up_s)
            for number, client, batch_s, down_s, up_s in known.select("round", "client", *columns).iter_rows()
        }
        batch_size = record.batch_size
        samples = {}
        for number, client, count, epochs, batches in table.select(
            "round", "client", "samples", "epochs", "batches"
        ).iter_rows():  # fmt: skip
            # A client that stopped in its first epoch reports the samples of its batches, not those it selected.
            selected = round(batches / epochs) * batch_size if batches and 0 < epochs < 1 else count
            if selected and epochs > 0:
                samples[number, client] = min(max(int(selected), int(count)), largest.get(client) or 1)
        absent = table.filter(pl.col("outcome").is_in(ABSENT)).select("round", "client").iter_rows()
        return cls(
            names, np.array(sizes, dtype=np.int64), np.array(network_s), draws, samples, bounds,
            frozenset((int(number), str(client)) for number, client in absent),
        )  # fmt: skip


def _bounds(
    table: pl.DataFrame, names: Sequence[str], columns: Sequence[str], greeted_s: Mapping[str, float]
) -> dict[str, FloatArray]:
    """Return the fast, typical and slow seconds of every client: its own quantiles, widened by the fleet's."""
    quantiles = (FAST, 0.5, SLOW)
    measured = {name: table.filter(pl.col(name) > 0).select("client", name) for name in columns}
    fleet = {
        name: np.quantile(each[name].to_numpy(), quantiles) if each.height else np.zeros(3)
        for name, each in measured.items()
    }
    shares = {name: _relative_quantiles(each, name, quantiles) for name, each in measured.items()}
    medians = {name: dict(each.group_by("client").agg(pl.col(name).median()).iter_rows())
               for name, each in measured.items()}  # fmt: skip
    result = {}
    for client in names:
        own = []
        for name in columns:
            middle = medians[name].get(client)
            if middle is None and name == "batch_s":
                middle = greeted_s.get(client)
            own.append(fleet[name] if middle is None else middle * shares[name])
        result[client] = np.array(own).T
    return result


def _relative_quantiles(measured: pl.DataFrame, name: str, quantiles: Sequence[float]) -> FloatArray:
    """Return quantiles of the ratio of a client's seconds to its median, over all clients."""
    repeated = measured.filter(pl.len().over("client") > 1)
    if not repeated.height:
        return np.ones(len(quantiles))
    ratios = repeated.select(pl.col(name) / pl.col(name).median().over("client"))[name].to_numpy()
    fast, _, slow = np.quantile(ratios, quantiles).tolist()
    return np.array([min(fast, 1.0), 1.0, max(slow, 1.0)])


KINDS = ("fast", "typical", "slow")


@dataclass(frozen=True, eq=False)
class ShadowDevices:
    """A `DeviceModel` with the recorded seconds, and bounds for the others.

    Args:
        times: The recorded seconds.
        kind: fast, typical or slow.
        first: Number of the first recorded round.
        seconds: Recorded seconds of every round.
    """

    times: RecordedTimes
    kind: str
    first: int
    seconds: Mapping[int, float]

    def expected_network_s(self, client: str, down_bytes: int, up_bytes: int) -> float:
        """Return what the server expected."""
        return float(self.times.network_s[self.times.clients.index(client)])

    def sample_batch_s(self, client: str, count: int) -> FloatArray:
        """Return the typical seconds per batch."""
        return np.full(count, self.times.bounds[client][1][0])

    def draw(self, client: str, round_number: int, down_bytes: int, up_bytes: int) -> DeviceDraw:
        """Return the recorded seconds of a client in a round, or its bound."""
        number = self.first + round_number - 1
        recorded = self.times.draws.get((number, client))
        if recorded is not None:
            return recorded
        batch_s, down_s, up_s = self.times.bounds[client][KINDS.index(self.kind)].tolist()
        if (number, client) in self.times.absent and self.kind != "fast":
            # It had not answered when the round closed: at least as long, at most until the server gives up.
            up_s = max(up_s, TIMEOUT_S if self.kind == "slow" else self.seconds.get(number, 0.0))
        return DeviceDraw(batch_s, down_s, up_s)


class ShadowEngine(SimulatedEngine):
    """An engine in which the recorded clients are available, and their samples are as many as they selected.

    Args:
        times: The recorded seconds.
        first: Number of the first recorded round.
        cohorts: Recorded clients by round; None: the method selects from all clients.
        knows_samples: Whether clients select as many samples as recorded.
        is_fast: Whether other clients select as few samples as possible.
    """

    def __init__(
        self, times: RecordedTimes, first: int, cohorts: Mapping[int, Sequence[str]] | None, knows_samples: bool,
        is_fast: bool, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(**options)
        self.times, self.first, self.cohorts = times, first, cohorts
        self.knows_samples, self.is_fast = knows_samples, is_fast
        self.replayed = 0

    def available(self, clock_s: float) -> IndexArray:
        """Return the rows of the recorded clients, or of all that have no report under way."""
        if self.cohorts is None:
            return super().available(clock_s)
        cohort = self.cohorts.get(self.first + self.replayed, ())
        rows = self.ledger.rows(tuple(client for client in cohort if client in self.ledger.position))
        return rows[~np.isin(rows, self.ledger.rows(self.pending.clients))] if self.pending else rows

    def run(self, *arguments: Any, **options: Any) -> Any:
        """Run a round and count it."""
        result = super().run(*arguments, **options)
        self.replayed += 1
        return result

    def _client_round(self, order: Order, client: str, row: int) -> ClientRound:
        client_round = super()._client_round(order, client, row)
        if client_round.needs_forward_pass:
            return client_round
        count = self.times.samples.get((self.first + order.round - 1, client)) if self.knows_samples else None
        if count is None and self.is_fast and not isinstance(self.policies.samples, EverySample):
            count = 1
        if count is not None:
            client_round.limit_samples(count)
        return client_round
