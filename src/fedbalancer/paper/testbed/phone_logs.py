"""Extra results of a test-bed run: every phone's rounds, and the lag of this machine."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedbalancer.core.files import write_bytes
from fedbalancer.core.types import FloatArray

PHONES = "phones.parquet"
SCHEMA = {
    "round": pl.Int64, "client": pl.String, "download_s": pl.Float64, "batch_s": pl.Float64, "upload_s": pl.Float64,
    "batches": pl.Int64, "samples": pl.Int64, "forward_s": pl.Float64, "busy_s": pl.Float64, "order_s": pl.Float64,
    "real_s": pl.Float64,
    "arrives_s": pl.Float64, "lag_s": pl.Float64,
}  # fmt: skip
BEARABLE = 0.05
"""Largest acceptable lag as a share of a phone's time, at the 90th percentile."""


def gather(logs: Path, run: Path) -> pl.DataFrame:
    """Merge the phones' logs of a run into `phones.parquet` in its folder.

    Args:
        logs: Folder of the logs; it is deleted.
        run: Run folder.

    Returns:
        The table.
    """
    rows = [row for file in sorted(logs.glob("*.jsonl")) for row in _rows(file)]
    frame = pl.DataFrame(rows, schema=SCHEMA).sort("round", "client")
    buffer = BytesIO()
    frame.write_parquet(buffer)
    write_bytes(run / PHONES, buffer.getvalue())
    shutil.rmtree(logs, ignore_errors=True)
    return frame


def _rows(file: Path) -> list[dict[str, Any]]:
    """Read complete lines only: a phone may have been killed while it wrote."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1]]


@dataclass(frozen=True)
class Lag:
    """The lag of this machine behind the phones.

    Args:
        late: Share of the phones' rounds in which it was too slow.
        p90_s: 90th percentile of the lag, in phone seconds.
        p90_share: 90th percentile of the lag, as a share of the phone's time for a round.
        worst_s: Largest lag, in phone seconds.
        stood_s: Seconds of this machine during which the clock waited. 0 in real time, where the lag is in the results.
        suggested_speed: Speed at which the machine would keep up. None if it does.
    """

    late: float
    p90_s: float
    p90_share: float
    worst_s: float
    stood_s: float
    suggested_speed: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def words(self) -> str:
        """Return one sentence for people."""
        if self.suggested_speed is None:
            return f"fast enough in {1 - self.late:.0%} of the phones' rounds"
        what = f"too slow in {self.late:.0%} of the phones' rounds (90th percentile of the lag: {self.p90_s:.0f} s)"
        if self.stood_s:
            what += f"; the phones' clock waited for {self.stood_s:.0f} s of real time"
        return f"{what}; use --speed {self.suggested_speed:g} to keep up"


def lag_of(phones: pl.DataFrame, speed: float, stood_s: float = 0.0) -> Lag:
    """Compute the lag of a run.

    Real work takes the same time at any speed, so the suggested speed is that at which nine of ten rounds keep up.

    Args:
        phones: The rows of `phones.parquet`.
        speed: Phone seconds per second of this machine.
        stood_s: Seconds of this machine during which the clock waited.

    Returns:
        The lag.
    """
    if not phones.height:
        return Lag(0.0, 0.0, 0.0, 0.0, stood_s, None)
    due = phones["download_s"] + phones["busy_s"] + phones["upload_s"]
    p90_share = float((phones["lag_s"] / due).quantile(0.9) or 0.0)
    needed = float((phones["real_s"] / due).quantile(0.9) or 0.0)
    return Lag(
        late=len(phones.filter(pl.col("lag_s") > 0)) / len(phones),
        p90_s=float(phones["lag_s"].quantile(0.9) or 0.0),
        p90_share=p90_share,
        worst_s=float(phones["lag_s"].max() or 0.0),  # type: ignore[arg-type]
        stood_s=stood_s,
        suggested_speed=None if p90_share <= BEARABLE else max(round(speed / needed, 1), 0.1),
    )


def latencies(phones: pl.DataFrame) -> list[tuple[str, FloatArray, FloatArray]]:
    """Return name, training seconds and network seconds of every phone, the slowest trainer first.

    Args:
        phones: The rows of `phones.parquet`.

    Returns:
        The seconds as minimum, mean and maximum over the rounds.
    """
    rows = [
        (str(client), _spread(group["busy_s"]), _spread(group["download_s"] + group["upload_s"]))
        for (client,), group in phones.group_by(["client"])
    ]
    return sorted(rows, key=lambda row: (-row[1][1], row[0]))


def _spread(values: pl.Series) -> FloatArray:
    numbers = values.to_numpy()
    return np.array([numbers.min(), numbers.mean(), numbers.max()])
