"""Reads from orders without an answer whether a device is slower than its answers show, or offline.

A deadline hides slow rounds. A device that answers only when its network is fast looks faster than it is, and an order
that it missed for lack of time looks like a phone that was switched off.
"""

from __future__ import annotations

import math

import numpy as np
import polars as pl

from fedbalancer.core.types import FloatArray
from fedbalancer.experiments.recording import MEGABIT_BYTES, Recording

NETWORK = ("down_mbit_s", "up_mbit_s")
FIRST_ABSENCE, STEPS = 0.05, 50
"""Share of orders for which a device is absent, where the estimation starts, and its number of steps."""


def with_expected_network(record: Recording, table: pl.DataFrame) -> pl.DataFrame:
    """Return the table of devices with networks that also count orders without an answer.

    Such an order counts with the network seconds that the server expected of the client; so does a client that was
    never measured. Other devices, and those of which the server expected nothing, stay as they are.

    Args:
        record: The recording.
        table: A row per client with its means.
    """
    total = record.down_bytes + record.up_bytes
    silent = dict(record.clients.filter(pl.col("outcome") == "silent").group_by("client").len().iter_rows())
    rows = []
    for row in table.iter_rows(named=True):
        expected_s = record.ledger.get(row["client"], (0.0, 0, 0.0))[2]
        missing = silent.get(row["client"], 0)
        if expected_s > 0 and total > 0 and (missing > 0 or row[NETWORK[0]] is None):
            own = [row[name] for name in NETWORK]
            known = row["rounds"] if None not in own else 0
            split_s = np.array([record.down_bytes, record.up_bytes]) / total * expected_s
            measured_s = np.array([record.down_bytes, record.up_bytes]) / MEGABIT_BYTES / own if known else split_s
            seconds = (known * measured_s + max(missing, 1) * split_s) / (known + max(missing, 1))
            megabits = np.array([record.down_bytes, record.up_bytes]) / MEGABIT_BYTES
            row |= dict(zip(NETWORK, (megabits / seconds).tolist(), strict=True))
        rows.append([row[name] for name in NETWORK])
    return table.with_columns(pl.DataFrame(rows, schema=dict.fromkeys(NETWORK, pl.Float64), orient="row"))


def orders_missed_by_lateness(record: Recording, table: pl.DataFrame, spread: float) -> dict[str, float]:
    """Return for every client how many of its orders without an answer are missed by lateness, and not by absence.

    The work of a client is the share of an order's batches that clients of this run completed (median), and its network
    seconds are log-normal around their mean. How often a client is absent is estimated together with the causes.

    Args:
        record: The recording.
        table: A row per client with its means, `asked` and `answered` (`with_expected_network`).
        spread: Relative deviation of network seconds between rounds.
    """
    done = record.clients.filter(pl.col("batches").is_not_null())
    usual = float((done["batches"] / done["all_batches"]).median() or 1.0)  # type: ignore[arg-type]
    means = {row["client"]: row for row in table.iter_rows(named=True)}
    silent = record.clients.filter((pl.col("outcome") == "silent") & pl.col("deadline_s").is_finite())
    chances: dict[str, list[float]] = {}
    for client, deadline_s in silent.select("client", "deadline_s").iter_rows():
        row = means[client]
        if None in (row["batch_s"], row["samples"], *(row[name] for name in NETWORK)):
            continue
        train_s = max(usual * record.all_batches(row["samples"]), 1.0) * row["batch_s"]
        network_s = (record.down_bytes / row[NETWORK[0]] + record.up_bytes / row[NETWORK[1]]) / MEGABIT_BYTES
        chances.setdefault(client, []).append(_exceeds(deadline_s - train_s, network_s, spread))
    return {client: _caused_by_lateness(np.array(each), means[client]["asked"]) for client, each in chances.items()}


def _caused_by_lateness(late: FloatArray, asked: int) -> float:
    """Return how many missed orders are due to lateness, by expectation maximisation over the share of absence.

    Args:
        late: Chance of lateness of every order that was missed.
        asked: Number of all orders.
    """
    absence, causes = FIRST_ABSENCE, late
    for _ in range(STEPS):
        causes = late / np.maximum(late + (1 - late) * absence, 1e-12)
        absence = float((1 - causes).sum()) / max(asked, 1)
    return float(causes.sum())


def _exceeds(limit: float, mean: float, spread: float) -> float:
    """Return the probability that a log-normal value with this mean and relative deviation is above the limit."""
    if limit <= 0 or not math.isfinite(limit):
        return float(limit <= 0)
    if mean <= 0 or spread <= 0:
        return float(mean > limit)
    deviation = math.sqrt(math.log1p(spread**2))
    return 0.5 * math.erfc((math.log(limit / mean) + deviation**2 / 2) / (deviation * math.sqrt(2)))
