"""Compare FedBalancer with FedAvg on your own data and model."""

import numpy as np
import torch

import fedbalancer as fb


def make_client(number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    x = rng.normal(loc=number / 10, size=(60 + 20 * number, 8)).astype(np.float32)
    return x, (x.sum(axis=1) > 8 * number / 10).astype(np.int64)


task = fb.Task(
    name="sums",
    clients={f"phone-{number}": make_client(number) for number in range(8)},
    test=tuple(np.concatenate(parts) for parts in zip(*(make_client(n) for n in range(20, 24)), strict=True)),
    model=lambda: torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)),
    clients_per_round=3,
    rounds=10,
    eval_every=1,
    latency="har",
)

if __name__ == "__main__":
    table = fb.compare(task, methods=["fedavg+1t", "fedavg+wfa", "fedbalancer"], seeds=2)
    for name, score in table.to_json()["methods"].items():
        print(f"{name:12} speed-up {score['speedup']['mean']:.2f}  accuracy {score['accuracy']['mean']:.3f}")
