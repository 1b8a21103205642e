"""A server of the tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedbalancer.flower import Strategy
from tiny.model import FEATURES, data, losses

app = ServerApp()


def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"loss": float(losses(arrays["w"].numpy(), *data(99)).mean())})


class Own(Strategy):
    """A strategy with methods of its own, as Flower's users write them, that say when they were called."""

    folder = Path()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        config["note"] = server_round
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self.note("configure_train", server_round, len(messages))
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        given = list(replies)
        self.note("aggregate_train", server_round, len(given))
        return super().aggregate_train(server_round, given)

    def note(self, name: str, round: int, messages: int) -> None:
        with open(self.folder / "called.txt", "a") as file:
            file.write(f"{name} {round} {messages}\n")


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    method: Any = str(config["method"])
    if method == "slots":
        from tiny.slots import METHOD as method
    kind = Own if config["own"] else Strategy
    Own.folder = Path(str(config["folder"]))
    strategy = kind(
        method=method, clients_per_round=int(config["clients"]), epochs=3, batch_size=10,
        learning_rate=0.02, min_clients=int(config["clients"]), settings={"w": int(config["w"])} if config["w"] else {},
        checkpoint_dir=str(config["folder"]), run_key=str(config["key"]), task="tiny",
        track=[str(config["track"])] if config["track"] else [], keep=int(config["keep"]),
        secure_aggregation=bool(config["secure"]),
    )  # fmt: skip
    start = ArrayRecord({"w": Array(np.zeros(FEATURES, dtype=np.float32))})
    strategy.start(grid, start, num_rounds=int(config["rounds"]), timeout=120, evaluate_fn=evaluate)
