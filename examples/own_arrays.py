"""Distribute arrays without users over twenty clients with different labels, and compare methods."""

import numpy as np

import fedbalancer as fb

rng = np.random.default_rng(0)
y = rng.integers(0, 4, 2000)
x = (rng.normal(size=(2000, 16)) + np.eye(4).repeat(4, axis=1)[y] * 1.5).astype(np.float32)

# A smaller alpha gives each client fewer of the labels.
task = fb.Task.from_arrays(
    x, y, model="mlp", partition="dirichlet", clients=20, alpha=0.3, test_share=0.2,
    name="unlike", clients_per_round=5, rounds=8, eval_every=1, learning_rate=0.05, latency="har",
)  # fmt: skip

if __name__ == "__main__":
    table = fb.compare(task, methods=["fedavg+1t", "fedavg+wfa", "fedbalancer"], seeds=1)
    for name, score in table.to_json()["methods"].items():
        print(f"{name:12} accuracy {score['accuracy']['mean']:.3f}")
