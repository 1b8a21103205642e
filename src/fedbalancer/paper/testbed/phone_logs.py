"""What a run on the bed leaves behind beside the usual tables: what every phone did, and how far the machine lagged."""

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
"""Share of a phone's time by which this machine may be late, in nine of ten cases."""


def wait_for_clients(logs: Path, run: Path) -> pl.DataFrame:
    """The phones' logs of a run as one table in its folder."""
    rows = [row for file in sorted(logs.glob("*.jsonl")) for row in _rows(file)]
    frame = pl.DataFrame(rows, schema=SCHEMA).sort("round", "client")
    buffer = BytesIO()
    frame.write_parquet(buffer)
    write_bytes(run / PHONES, buffer.getvalue())
    shutil.rmtree(logs, ignore_errors=True)
    return frame


def _rows(file: Path) -> list[dict[str, Any]]:
    """Whole lines only: a phone may have been stopped while it wrote."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1]]


@dataclass(frozen=True)
class Lag:
    """By how much the machine was too slow for the phones, in phone seconds and as a share of a phone's time for a
    round. `late` is the share of all rounds of all phones in which it was too slow at all; `stood_s` for how many
    seconds of this machine the clock stood still, waiting for it (0 in real time: there the lag is in the results)."""

    late: float
    p90_s: float
    p90_share: float
    worst_s: float
    stood_s: float
    suggested_speed: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def words(self) -> str:
        """For people."""
        if self.suggested_speed is None:
            return f"quick enough for the phones but in {self.late:.0%} of their rounds"
        what = (
            f"too slow for the phones in {self.late:.0%} of their rounds, in one of ten by {self.p90_s:.0f} s or more"
        )
        if self.stood_s:
            what += f"; their clock waited for it, {self.stood_s:.0f} s of our time in all"
        return f"{what}; it would keep up with --speed {self.suggested_speed:g}"


def lag_of(phones: pl.DataFrame, speed: float, stood_s: float = 0.0) -> Lag:
    """The lag of a run. The speed to suggest is that at which nine of ten rounds would have been bearable: real work
    takes as long at any speed, so that a phone's second may be as many of ours."""
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
