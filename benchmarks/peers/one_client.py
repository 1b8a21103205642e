"""Processor seconds of one client's training by torch loops and by fedbalancer, in one process with one thread.

    python benchmarks/peers/one_client.py [--workloads resnet18,bert-lora] [--repeats 9] [--candidates naive,plain,fast]

Processor time depends less on other programs than the rates of `run.py`. Candidates are timed in turns; a ratio is the
median over the repeats. The first training of a candidate is not counted: that of `torch.compile` compiles, and its
seconds are printed.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from engine_naive import train_client
from engine_ours import task_of
from prepare import SEED, client_name, prepare
from work import WORKLOADS, Work, trained_mask

from fedbalancer.core.randomness import integer_seed
from fedbalancer.core.types import ClientWork
from fedbalancer.training.trainer import TorchTrainer

RATE = 0.01


def candidates(work: Work) -> dict[str, Callable[[], object]]:
    """Functions that train the first client for an epoch."""
    module, task = work.module(), task_of(work, 1, RATE)
    weights = np.load(work.folder / "weights.npy")[trained_mask(module)]
    size, batch_size, name = work.sizes[0], work.workload.batch_size, client_name(0)
    seed = integer_seed(SEED, "train", 1, name)
    job = ClientWork(name, np.arange(size), -(-size // batch_size), batch_size, RATE, 0.0, None, seed)
    plain, fast = (TorchTrainer(task, backend) for backend in ("plain", "fast"))
    naive = partial(train_client, work=work, client=0, number=1, epochs=1, learning_rate=RATE)
    compiled = torch.compile(copy.deepcopy(module))  # reused, because a copy would compile again
    trainings: dict[str, Callable[[], object]] = {
        "naive": lambda: naive(copy.deepcopy(module)),
        "plain": lambda: plain.train(weights, job),
        "fast": lambda: fast.train(weights, job),
        "naive + torch.compile": lambda: naive(compiled),
        "naive + fused SGD": lambda: naive(copy.deepcopy(module), optimizer=partial(torch.optim.SGD, fused=True)),
        "naive + AdamW": lambda: naive(copy.deepcopy(module), optimizer=torch.optim.AdamW),
        "naive + fused AdamW": lambda: naive(copy.deepcopy(module), optimizer=partial(torch.optim.AdamW, fused=True)),
    }
    if len(work.workload.shape) == 3:
        last = torch.channels_last
        trainings["naive + channels_last"] = lambda: naive(copy.deepcopy(module).to(memory_format=last))
    return trainings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="resnet18,bert-lora", help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--candidates", help="comma-separated (default: all)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.workloads.split(","):
        with tempfile.TemporaryDirectory() as folder:
            prepare(Path(folder), name, 2, 1, 1)
            trainings = candidates(Work(folder, name))
            if options.candidates:
                trainings = {each: trainings[each] for each in ("naive", *options.candidates.split(","))}
            seconds: dict[str, list[float]] = {each: [] for each in trainings}
            for repeat in range(options.repeats + 1):
                for each, train in trainings.items():
                    begun = time.process_time()
                    train()
                    if repeat:
                        seconds[each].append(time.process_time() - begun)
                    elif "compile" in each:
                        print(f"{each}: {time.process_time() - begun:.0f} s of this process to compile", flush=True)
        for each, taken in seconds.items():
            ratio = statistics.median(naive / own for naive, own in zip(seconds["naive"], taken, strict=True))
            print(f"| {name} | {each} | {statistics.median(taken):.3f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
