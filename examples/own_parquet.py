"""Read a Parquet file with a user, a label and a signal per row. Writes gestures.parquet, which my_task.toml reads."""

import numpy as np
import polars as pl

import fedbalancer as fb

GESTURES = {"circle": 1.0, "shake": 2.0, "swipe": 0.5}


def recordings() -> pl.DataFrame:
    """Return 60 to 170 recordings (2 channels x 32 steps) for each of twelve people with different speeds."""
    rng = np.random.default_rng(0)
    rows = []
    time = np.linspace(0, 2 * np.pi, 32)
    for person in range(12):
        pace = rng.uniform(0.7, 1.3)
        for gesture in rng.choice(list(GESTURES), size=60 + 10 * person):
            angle = GESTURES[gesture] * pace * time + rng.uniform(0, 1)
            signal = np.stack([np.sin(angle), np.cos(angle)]) + rng.normal(scale=1.0, size=(2, 32))
            rows.append({"person": f"p{person:02d}", "gesture": gesture, "signal": signal.tolist()})
    return pl.DataFrame(rows)


if __name__ == "__main__":
    recordings().write_parquet("gestures.parquet")
    task = fb.Task.from_parquet(
        "gestures.parquet", user="person", label="gesture", features="signal", model="cnn1d",
        test_share=0.2, clients_per_round=3, rounds=8, eval_every=1, learning_rate=0.005, latency="har",
    )  # fmt: skip
    table = fb.compare(task, methods=["fedavg+1t", "fedavg+wfa", "fedbalancer"], seeds=1)
    for name, score in table.to_json()["methods"].items():
        print(f"{name:12} speed-up {score['speedup']['mean']:.2f}  accuracy {score['accuracy']['mean']:.3f}")
