"""A server of the tests."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedbalancer.flower import Strategy
from tiny.model import FEATURES, data, losses

app = ServerApp()


def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"loss": float(losses(arrays["w"].numpy(), *data(99)).mean())})


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = Strategy(
        method=str(config["method"]), clients_per_round=3, epochs=3, batch_size=10, learning_rate=0.02, min_clients=3,
        checkpoint_dir=str(config["folder"]), run_key=str(config["key"]), task="tiny",
    )  # fmt: skip
    start = ArrayRecord({"w": Array(np.zeros(FEATURES, dtype=np.float32))})
    strategy.start(grid, start, num_rounds=int(config["rounds"]), timeout=120, evaluate_fn=evaluate)
