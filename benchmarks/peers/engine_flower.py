"""Flower's simulation: Ray actors with one core each, FedAvg by Flower's own strategy.

A simulation lasts as long as its ServerApp, so the ServerApp itself takes the orders: actors, modules and data stay.
"""

from __future__ import annotations

import logging
import os
import time
import traceback
from typing import Any

os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0")

from flower_client import app as client_app
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from work import Work, orders, save_weights

NODES = int(os.environ["PEERS_CLIENTS"])
CORES = int(os.environ["PEERS_CORES"])
server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    nodes: dict[int, int] = {}
    strategy = FedAvg(fraction_evaluate=0.0)
    for order, answer in orders():
        nodes = nodes or node_of_client(grid)
        answer(run(grid, strategy, nodes, order))


def node_of_client(grid: Grid) -> dict[int, int]:
    """Which node is which client: asked once."""
    while len(list(grid.get_node_ids())) < NODES:
        time.sleep(0.1)
    questions = [Message(RecordDict(), node, MessageType.QUERY) for node in grid.get_node_ids()]
    replies = grid.send_and_receive(questions)
    return {int(reply.content["who"]["client"]): reply.metadata.src_node_id for reply in replies}


def run(grid: Grid, strategy: FedAvg, nodes: dict[int, int], order: dict[str, Any]) -> dict[str, Any]:
    """Rounds as ordered; seconds of each, from the first message to the new global weights."""
    work = Work(order["folder"], order["workload"])
    module = work.module()
    arrays = ArrayRecord(module.state_dict())
    seconds = []
    for number in range(1, order["rounds"] + 1):
        begun = time.perf_counter()
        told = {key: order[key] for key in ("folder", "workload", "epochs", "learning_rate")}
        config = ConfigRecord({**told, "round": number})
        content = RecordDict({"arrays": arrays, "config": config})
        messages = [Message(content, nodes[client], MessageType.TRAIN) for client in work.clients]
        replies = list(grid.send_and_receive(messages))
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        if failed or len(replies) != len(messages):
            raise RuntimeError(f"{len(replies)} of {len(messages)} replies; {failed[:1]}")
        arrays = strategy.aggregate_train(number, replies)[0]
        seconds.append(time.perf_counter() - begun)
    module.load_state_dict(arrays.to_torch_state_dict())
    save_weights(module, order["out"])
    return {"seconds": seconds}


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.WARNING)
    resources = {"init_args": {"num_cpus": CORES}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    try:
        run_simulation(server_app, client_app, num_supernodes=NODES, backend_config=resources)
    except Exception:  # the ServerApp would wait for ever for actors that never came
        traceback.print_exc()
        os._exit(1)
