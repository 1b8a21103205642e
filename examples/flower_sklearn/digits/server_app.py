"""A server with FedBalancer as its strategy. Training starts at zero; the test digits belong to no client."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from digits.model import CLIENTS, classifier, losses, part, start
from fedbalancer.flower import Strategy

app = ServerApp()


def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
    model = classifier(arrays.to_numpy_ndarrays())
    x, y = part(CLIENTS - 1)
    return MetricRecord({"accuracy": float(model.score(x, y)), "loss": float(losses(model, x, y).mean())})


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = Strategy(
        method="fedbalancer", clients_per_round=3, min_clients=3, epochs=3, batch_size=10, learning_rate=0.05,
        checkpoint_dir=str(config["folder"]), run_key=str(config["key"]), task="digits",
    )  # fmt: skip
    strategy.start(grid, ArrayRecord(start()), num_rounds=int(config["rounds"]), evaluate_fn=evaluate)
