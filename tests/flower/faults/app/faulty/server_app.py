"""A server that keeps the model of every round, for the check that every report counted exactly once."""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from faulty.model import FEATURES, METHOD, Seconds, data, losses
from fedbalancer.flower import Strategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    folder, deadline_s = Path(str(config["folder"])), float(str(config["deadline"]))

    def keep(round: int, arrays: ArrayRecord) -> MetricRecord:
        model = arrays["w"].numpy()
        with open(folder / "models.jsonl", "a") as file:
            peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            line = {"round": round, "at_s": time.monotonic(), "model": model.tolist(), "peak_mb": peak_mb}
            file.write(json.dumps(line) + "\n")
        return MetricRecord({"loss": float(losses(model, *data(99)).mean())})

    strategy = Strategy(
        METHOD.with_policies(deadline=Seconds(deadline_s)), clients_per_round=20, epochs=3, batch_size=10,
        learning_rate=0.02, min_clients=int(str(config["least"])), checkpoint_dir=folder, run_key=str(config["key"]),
        task="faulty",
    )  # fmt: skip
    start = ArrayRecord({"w": Array(np.zeros(FEATURES, dtype=np.float32))})
    strategy.start(grid, start, num_rounds=int(str(config["rounds"])), timeout=600, evaluate_fn=keep)
