"""A server whose clients train on devices. It needs no torch either: the model's names and shapes are in the file."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedbalancer.flower import Strategy
from fedbalancer.training.litert import LitertModel

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config, rng = context.run_config, np.random.default_rng(0)
    layout = LitertModel(str(config["file"])).layout
    start = ArrayRecord({name: Array(rng.normal(0, 0.2, shape).astype(np.float32)) for name, shape in layout})
    strategy = Strategy(
        method="fedbalancer", clients_per_round=3, epochs=5, batch_size=8, learning_rate=0.1, min_clients=3,
        checkpoint_dir=str(config["folder"]), run_key="device", task="gadget", federated_evaluate=True,
    )  # fmt: skip
    strategy.start(grid, start, num_rounds=int(config["rounds"]), timeout=120)
