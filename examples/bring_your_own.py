"""Your own model, optimizer, data, fleet, method, metric and tests per client in one script. Nothing is downloaded.

A tiny BERT with LoRA adapters is trained with AdamW on a Hugging Face data set that flwr-datasets divides by author.
Every author has test data. The phones come from a CSV file. SCAFFOLD is written here. Runs stop at a target F1 score.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from flwr_datasets.partitioner import NaturalIdPartitioner
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

import fedbalancer as fb
from fedbalancer.core.contracts import Aggregator, LocalRun, LocalTraining
from fedbalancer.core.types import Arrays, ClientReport, Layout, ServerState, Setup, Shapes, Weights
from fedbalancer.server.aggregate.mean import mean_update, sort_by_client

WORDS, LONGEST = 100, 16


def make_bert() -> torch.nn.Module:
    """Return a BERT of which only adapters and classifier are trained and sent."""
    config = BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=LONGEST, num_labels=2,
    )  # fmt: skip
    lora = LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"])
    return get_peft_model(BertForSequenceClassification(config), lora)


def make_reviews(authors: int, reviews: int, seed: int) -> Dataset:
    """Draw reviews of different lengths; good ones have more odd words, and authors differ in how often they praise."""
    rng, rows = np.random.default_rng(seed), []
    for author in range(authors):
        for label in (rng.random(reviews) < 0.2 + 0.6 * author / authors).astype(int).tolist():
            words = 2 * rng.integers(1, WORDS // 2 - 1, rng.integers(8, LONGEST + 1))
            rows.append((f"author-{author}", (words + (rng.random(len(words)) < 0.1 + 0.8 * label)).tolist(), label))
    return Dataset.from_dict(dict(zip(("author", "input_ids", "label"), zip(*rows, strict=True), strict=True)))


def make_task(authors: int) -> fb.Task:
    columns = {"features": ["input_ids"], "label": "label", "mask": "attention_mask"}
    split = partial(NaturalIdPartitioner, partition_by="author")
    tests, test = make_reviews(authors, 10, 1), make_reviews(authors, 20, 2)
    held_out = fb.Task.from_flower_datasets((tests, split()), test=test, model=make_bert, **columns)
    task = fb.Task.from_flower_datasets(
        (make_reviews(authors, 40, 0), split()), test=test, model=make_bert, **columns,
        name="reviews", metric=["f1", "accuracy"], optimizer=partial(torch.optim.AdamW, weight_decay=0.01),
        learning_rate=0.01, epochs=1, batch_size=8, clients_per_round=min(4, authors), eval_every=1,
    )  # fmt: skip
    return replace(task, client_tests=dict(held_out.clients))


def write_fleet(path: Path, authors: int) -> Path:
    """Write a phone per author, measured with the task's model: seconds per sample, Mbit/s and online hours."""
    lines = ["device,sample_s,std_s,down_mbit_s,up_mbit_s,online"]
    for author in range(authors):
        online = "0-64800" if author % 3 else "21600-86400"
        lines.append(f"author-{author},{0.02 * 1.5 ** (author % 5):.3f},0.002,{20 + author},{5 + author},{online}")
    path.write_text("\n".join(lines) + "\n")
    return path


@dataclass(frozen=True)
class Scaffold(LocalTraining):
    """SCAFFOLD's client (Karimireddy et al., 2020). Its variate is the mean of its gradients, for any optimizer."""

    def client_state(self, layout: Layout) -> Shapes:
        return {"c": (layout.parameters,), "sum": (layout.parameters,)}

    def down_arrays(self, layout: Layout) -> Shapes:
        return {"c": (layout.parameters,)}

    up_arrays = down_arrays

    def gradient(self, gradient: Weights, weights: Weights, run: LocalRun) -> Weights:
        run.state["sum"] = run.state["sum"] + gradient
        return gradient - run.state["c"] + run.arrays["c"]

    def finish(self, update: Weights, run: LocalRun) -> Weights:
        own = run.state["sum"] / max(run.steps, 1)
        run.sent["c"] = own - run.state["c"]
        run.state.update(c=own, sum=np.zeros_like(own))
        return update


@dataclass(frozen=True)
class ScaffoldServer(Aggregator):
    """SCAFFOLD's server; its state is the mean of the clients' variates."""

    def init(self, setup: Setup) -> Weights:
        return np.zeros(0, dtype=np.float32)

    def order_arrays(self, setup: Setup, state: ServerState) -> Arrays:
        return {"c": state.aggregate if len(state.aggregate) else np.zeros_like(state.weights)}

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, Weights]:
        changes = sum(report.arrays["c"] for report in sort_by_client(reports)) / len(setup.ledger.clients)
        return state.weights + mean_update(reports), self.order_arrays(setup, state)["c"] + changes


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--authors", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    task, fleet = make_task(options.authors), write_fleet(Path("fleet.csv"), options.authors)
    scaffold = fb.method("fedavg+wfa", train=Scaffold(), aggregate=ScaffoldServer(), name="own-scaffold")
    for method in ("fedavg+wfa", "fedbalancer[w=2]", scaffold):
        result = fb.run(task, method, rounds=options.rounds, devices=fleet, target=0.85)
        last, cost = result.evals.row(-1, named=True), f"{len(result.rounds)} rounds, {result.clock_s:.0f} s"
        print(f"{result.method}: {cost}, F1 {last['f1']:.3f}, worst tenth of authors {last['client_worst_decile']:.3f}")
