"""Accuracy of the tasks at small scale: FedAvg that waits for all, against the same model trained centrally.

    FEDBALANCER_DATA=... python benchmarks/tasks.py [TASK ...] [--epochs 10] [--scale small]

Prints one line of JSON per task, the source of the table in docs/reference/tasks.md. The central reference trains on
all samples in one place, with the task's batch size and learning rate, and is evaluated after every epoch.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace

import numpy as np

import fedbalancer as fb

TASKS = ("har", "femnist", "celeba", "shakespeare", "reddit")


def central(task: fb.Task, epochs: int) -> list[float]:
    """Test accuracy after every epoch over the pooled training data."""
    parts = [task.clients[client] for client in task.clients]
    pooled = tuple(np.concatenate([np.asarray(part[side]) for part in parts]) for side in (0, 1))
    alone = replace(task, clients={"everybody": pooled}, clients_per_round=1, epochs=1, rounds=epochs, eval_every=1)
    return fb.run(alone, "fedavg+wfa").evals["accuracy"].to_list()[1:]


def chance(task: fb.Task) -> float:
    """Accuracy, by the task's own metric, of always naming the same label: the best of the most frequent ones."""
    import torch

    from fedbalancer.training.tensors import resolve_metric, to_tensors

    features, labels = to_tensors((task.test[0], task.test[1]))
    classes = task.model()(features[:2]).shape[-1]  # a label beyond is a mask, which no model can name
    scores = []
    for label in np.argsort(np.bincount(labels.flatten().numpy(), minlength=classes)[:classes])[-5:]:
        answer = torch.zeros(classes)
        answer[label] = 1.0
        hits, of = resolve_metric(task.metric)(answer.expand(*labels.shape, classes), labels)
        scores.append(hits / of)
    return float(max(scores))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=TASKS)
    parser.add_argument("--epochs", type=int, default=10, help="epochs of the central reference")
    parser.add_argument("--scale", default="small")
    parser.add_argument("--variant")
    options = parser.parse_args()
    for name in options.tasks:
        task = fb.load_task(name, scale=options.scale, variant=options.variant)
        begun = time.perf_counter()
        result = fb.run(name, "fedavg+wfa", scale=options.scale, variant=options.variant)
        seconds = time.perf_counter() - begun
        reference = central(task, options.epochs)
        row = {
            "task": name,
            "variant": task.variant,
            "scale": options.scale,
            "users": len(task.sizes),
            "samples": sum(task.sizes.values()),
            "test_samples": len(task.test[1]),
            "parameters": len(result.weights),
            "rounds": len(result.rounds),
            "federated": round(result.accuracy, 4),
            "federated_best": round(max(result.evals["accuracy"].to_list()), 4),
            "central": round(reference[-1], 4),
            "central_best": round(max(reference), 4),
            "chance": round(chance(task), 4),
            "seconds": round(seconds, 1),
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
