"""Read a folder with one .npz file per client: x (one row per sample) and y (0, 1, 2, ... or text), and test.npz."""

import tempfile
from pathlib import Path

import numpy as np

import fedbalancer as fb


def save(path: Path, seed: int) -> None:
    """Write the readings of one sensor box: 6 numbers each, and whether somebody was in the room."""
    rng = np.random.default_rng(seed)
    present = rng.random(40 + 10 * seed) < 0.5
    x = rng.normal(size=(len(present), 6)) + np.outer(present, [1, 0, -1, 1, 0, 0.5])
    np.savez(path, x=x.astype(np.float32), y=np.where(present, "somebody", "nobody"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for number in range(10):
            save(Path(folder) / f"box-{number}.npz", number)
        save(Path(folder) / "test.npz", 50)
        task = fb.Task.from_folder(
            folder, model={"name": "mlp", "hidden": [16]}, name="rooms", clients_per_round=3, rounds=10, eval_every=1
        )
    table = fb.compare(task, methods=["fedavg+1t", "fedavg+wfa", "fedbalancer"], seeds=1)
    for name, score in table.to_json()["methods"].items():
        print(f"{name:12} speed-up {score['speedup']['mean']:.2f}  accuracy {score['accuracy']['mean']:.3f}")
