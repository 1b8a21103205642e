"""Columns that this version records in addition to those of all versions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

CLIENTS = 40
DEVICES = ["slow", "mid", "mid", "fast"]


def complete(run: Path) -> None:
    """Add to a run folder the columns and the files that older versions do not have."""
    rng = np.random.default_rng(5)
    rounds = pl.read_parquet(run / "rounds.parquet", glob=False)
    count, ours = rounds.height, run.parent.name == "fedbalancer"
    bound, loss = (rng.uniform(50, 60, count) if ours else [None] * count), np.exp(-np.arange(count) / 300)
    rounds.with_columns(
        down_bytes=pl.lit(500_000), up_bytes=pl.lit(400_000), device_s=pl.Series(rng.uniform(300, 500, count)),
        sample_passes=pl.Series(rng.uniform(1000, 2000, count)), deadline_low_s=pl.Series(bound, dtype=pl.Float64),
        deadline_high_s=pl.Series(bound, dtype=pl.Float64) * 3, loss_low=pl.Series(loss * 0.1),
        loss_mean=pl.Series(loss), loss_high=pl.Series(loss * 4), seen_loss_p10=pl.Series(loss * 0.2),
        seen_loss_p50=pl.Series(loss * 0.9), seen_loss_p90=pl.Series(loss * 3),
    ).write_parquet(run / "rounds.parquet")  # fmt: skip
    clients = pl.read_parquet(run / "clients.parquet", glob=False)
    size = clients.height
    clients.with_columns(
        client=pl.Series([f"c{number:02d}" for number in rng.integers(0, CLIENTS - 5, size)]),
        download_s=pl.Series(rng.uniform(5, 9, size)), forward_s=pl.Series(rng.uniform(0, 4, size)),
        train_s=pl.Series(rng.uniform(40, 90, size)), upload_s=pl.Series(rng.uniform(9, 15, size)),
        paused_s=pl.lit(0.0), epochs=pl.lit(5.0), samples=pl.lit(300),
    ).write_parquet(run / "clients.parquet")  # fmt: skip
    names = [f"c{number:02d}" for number in range(CLIENTS)]
    pl.DataFrame({
        "client": names, "samples": 100, "device": DEVICES * (CLIENTS // 4), "clock_s": 10_000.0,
        "accuracy": rng.uniform(0.6, 0.9, CLIENTS),
    }).write_parquet(run / "population.parquet")  # fmt: skip
    held = np.array([400, 800, 0, 400])
    trained = held // (np.array([1, 4, 1, 2]) if ours else 1)
    pl.DataFrame({"label": range(4), "held": held, "trained": trained, "clock_s": 10_000.0}).write_parquet(
        run / "classes.parquet"
    )
