"""Flower's client, in a module of its own so that Ray's actors import it once and keep what it caches."""

from __future__ import annotations

from functools import lru_cache

import torch
from engine_naive import train_client
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from work import Work

app = ClientApp()


@lru_cache
def loaded(folder: str, workload: str) -> tuple[Work, nn.Module]:
    """Data and module, made once per actor."""
    torch.set_num_threads(1)
    work = Work(folder, workload)
    return work, work.module()


@app.query()
def who(message: Message, context: Context) -> Message:
    """Which client this node is."""
    number = int(context.node_config["partition-id"])
    return Message(RecordDict({"who": MetricRecord({"client": number})}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Set the weights, train, send the weights back: as in Flower's quickstart with PyTorch."""
    config = message.content["config"]
    work, module = loaded(config["folder"], config["workload"])
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    client = int(context.node_config["partition-id"])
    train_client(module, work, client, config["round"], config["epochs"], config["learning_rate"])
    content = RecordDict(
        {
            "arrays": ArrayRecord(module.state_dict()),
            "metrics": MetricRecord({"num-examples": work.sizes[client]}),
        }
    )
    return Message(content, reply_to=message)
