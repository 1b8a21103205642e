"""Local training at `small`: whole steps in one call against layer by layer, and against torch alone.

    python benchmarks/small_steps.py [--repeats 7]

The models are those of the tasks at `small`, the data random (speed does not look at values). All ways train the same
work in turns, in one thread and in processor time; a ratio is the median of the ratios within a repeat.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import numpy as np
import torch

from fedbalancer.core.types import ClientWork
from fedbalancer.data import Task
from fedbalancer.data.tasks import femnist, har, synthetic
from fedbalancer.training.trainer import TorchTrainer

SAMPLES, BATCH = 300, 10
MODELS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...], int]] = {
    "har": (lambda: har.make_model(*har.SHAPES["small"]), (9, 64), 6),
    "femnist": (lambda: femnist.make_model(*femnist.SHAPES["small"]), (1, 14, 14), 62),
    "synthetic": (synthetic.make_model, (synthetic.FEATURES,), synthetic.CLASSES),
}


def trainers(name: str) -> dict[str, TorchTrainer]:
    """The same task three times: by rows, layer by layer, plain."""
    model, shape, classes = MODELS[name]
    rng = np.random.default_rng(0)
    data = (rng.random((SAMPLES, *shape), dtype=np.float32), rng.integers(classes, size=SAMPLES))
    task = Task(clients={"ann": data}, test=data, model=model, batch_size=BATCH)
    made = {"row": TorchTrainer(task), "layers": TorchTrainer(task), "plain": TorchTrainer(task, "plain")}
    assert made["row"].plan is not None
    assert made["row"].plan.row is not None
    made["layers"].__dict__["plan"] = replace(made["row"].plan, row=None)
    made["layers"].model.__dict__["plan"] = made["layers"].__dict__["plan"]
    return made


def step_us(trainer: TorchTrainer, epochs: int = 20) -> float:
    """Microseconds of processor time of a step."""
    work = ClientWork("ann", np.arange(SAMPLES), epochs * SAMPLES // BATCH, BATCH, 0.01, mu=0.0, clip_norm=None, seed=0)
    weights = trainer.initial_weights(0)
    begun = time.process_time()
    trainer.train(weights, work)
    return (time.process_time() - begun) / work.batches * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    print("| model | row, us a step | layer by layer | plain | row over layers | row over plain |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name in MODELS:
        ways = trainers(name)
        rows = [{way: step_us(trainer) for way, trainer in ways.items()} for _ in range(repeats + 1)][1:]
        times = {way: median(row[way] for row in rows) for way in ways}
        over = {way: median(row[way] / row["row"] for row in rows) for way in ("layers", "plain")}
        cells = [*(f"{times[way]:.0f}" for way in ways), *(f"{ratio:.2f} x" for ratio in over.values())]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
