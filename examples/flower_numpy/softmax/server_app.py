"""A server with FedBalancer as its strategy. Training starts at zero; the test points belong to no client."""

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedbalancer.flower import Strategy
from softmax.model import CLASSES, FEATURES, PEOPLE, losses, points, probabilities

app = ServerApp()


def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
    weights, bias = arrays.to_numpy_ndarrays()
    x, y = points(PEOPLE)
    right = probabilities(weights, bias, x).argmax(axis=1) == y
    return MetricRecord({"accuracy": float(right.mean()), "loss": float(losses(weights, bias, x, y).mean())})


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = Strategy(
        method="fedbalancer", clients_per_round=3, min_clients=3, epochs=3, batch_size=10, learning_rate=0.05,
        checkpoint_dir=str(config["folder"]), run_key=str(config["key"]), task="softmax",
    )  # fmt: skip
    start = ArrayRecord([np.zeros((FEATURES, CLASSES)), np.zeros(CLASSES)])
    strategy.start(grid, start, num_rounds=int(config["rounds"]), evaluate_fn=evaluate)
