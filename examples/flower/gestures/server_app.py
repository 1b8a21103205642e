"""A ServerApp with FedBalancer as its strategy."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedbalancer.flower import Strategy
from gestures.task import network, recordings, scores

app = ServerApp()


def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate the model on recordings of two people who do not train."""
    model = network()
    model.load_state_dict(arrays.to_torch_state_dict())
    people = [scores(model, *recordings(person, 300)) for person in (100, 101)]
    return MetricRecord({name: sum(found[name] for found in people) / len(people) for name in people[0]})


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = Strategy(
        method="fedbalancer", clients_per_round=3, min_clients=3, epochs=5, batch_size=10, learning_rate=0.005,
        settings={"w": 2, "lss": 0.1, "dss": 0.1},  # with only ten rounds, let the ratios move every second round
        checkpoint_dir=str(config["folder"]), run_key=str(config["key"]), task="gestures",
        authenticated_nodes=True,
    )  # fmt: skip
    start = ArrayRecord(network().state_dict())
    strategy.start(grid, start, num_rounds=int(config["rounds"]), timeout=300, evaluate_fn=evaluate)
