"""A client on a model file beside one on torch: file size, memory, time of a batch, time until it trains.

    python benchmarks/litert.py [watch:small har:paper ...] [--clients litert,torch,executorch] [--files DIR]
                                [--repeats 3] [--batches 40] [--json]

Every measurement is a process of its own with one thread, which imports what a Flower client imports, opens the model,
trains one batch of the task's size (start-up: from the start of the process until then) and a number of batches more.
A batch is the median of processor seconds, which other work on the machine changes least; start-up is processor seconds
too; memory is the largest that the process ever had. `flwr` alone is a process that has imported it and NumPy. The best
of the repeats is shown. torch is `client_app` with its default engine. Files that are not in DIR are exported first,
for which TensorFlow is needed, or ExecuTorch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

TASKS = ("watch:small", "har:small", "har:paper", "femnist:small", "femnist:paper")
CLIENTS = "litert,torch"
SAMPLES = 60


def main() -> None:
    arguments = parser().parse_args()
    with TemporaryDirectory() as folder:
        place = arguments.files or Path(folder)
        bare = child("nothing", "", "", "", 0)["mb"]
        found = {task: measured(task, place, arguments) for task in arguments.tasks or TASKS}
    if arguments.json:
        print(json.dumps({"flwr_mb": bare, "tasks": found}))
        return
    print(f"flwr and NumPy alone: {bare:.0f} MB\n")
    print("| task | file, kB | client | batch, ms | start-up, s | memory, MB |\n|:--|--:|:--|--:|--:|--:|")
    for task, by_client in found.items():
        for number, client in enumerate(arguments.clients.split(",")):
            row = by_client[client]
            size = f"{row['bytes'] / 1e3:.0f}" if "bytes" in row else ""
            name = task.replace(":", ", ") if number == 0 else ""
            print(f"| {name} | {size} | {client} | {row['batch_ms']:.2f} | {row['start_s']:.2f} | {row['mb']:.0f} |")


def measured(task: str, place: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """The best of every client's measurements, with the size of its file."""
    from fedbalancer.data import load_task

    name, _, scale = task.partition(":")
    loaded = load_task(name, scale=scale or "small")
    features, labels = loaded.clients[next(iter(loaded.clients))]
    with TemporaryDirectory() as folder:
        data = Path(folder) / "samples.npz"
        np.savez(data, x=features[:SAMPLES], y=labels[:SAMPLES])
        found: dict[str, Any] = {}
        make = getattr(loaded.model, "func", loaded.model), getattr(loaded.model, "args", ())
        loss = loaded.loss if isinstance(loaded.loss, str) else [loaded.loss.__module__, loaded.loss.__name__]
        model = json.dumps([make[0].__module__, make[0].__name__, make[1], loss])
        for client in arguments.clients.split(","):
            file = file_of(client, loaded, place / f"{name}-{scale or 'small'}")
            runs = [child(client, model, file, data, arguments.batches) for _ in range(arguments.repeats)]
            sizes = {"bytes": file.stat().st_size} if file.exists() else {}
            found[client] = {key: min(run[key] for run in runs) for key in runs[0]} | sizes
    return found


def file_of(client: str, task: Any, stem: Path) -> Path:
    """The model file of a client, exported if it is not there; torch has none."""
    from fedbalancer.export.run import export
    from fedbalancer.training.model_file import SUFFIXES

    path = stem.with_suffix(SUFFIXES.get(client, ".none"))
    return path if client == "torch" or path.exists() else export(task, path, client).path


def child(*options: Any) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--child", *map(str, options)], capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def be_child(client: str, made_by: str, file: str, data: str, batches: str) -> None:
    """Measure one client in this process."""
    import flwr.clientapp  # noqa: F401

    from fedbalancer.training.tensors import prepare_samples

    told = {"mb": largest_mb()}
    if client != "nothing":
        model = on_torch(made_by, data) if client == "torch" else of_file(file)
        with np.load(data) as held:
            samples = prepare_samples((held["x"], held["y"]))
        model.time_batches(samples, 10, 1)
        start_s = time.process_time()
        seconds = [cpu_s(model, samples) for _ in range(int(batches) // 4)]
        told = {"mb": largest_mb(), "start_s": start_s, "batch_ms": 1e3 * statistics.median(seconds)}
    print(json.dumps(told))


def cpu_s(model: Any, samples: Any) -> float:
    """Processor seconds of a batch, over four in a row and the first one that `timed` makes."""
    began_s = time.process_time()
    model.time_batches(samples, 10, 4)
    return (time.process_time() - began_s) / 5


def of_file(file: str) -> Any:
    from fedbalancer.training.model_file import open_model

    return open_model(file)


def on_torch(made_by: str, data: str) -> Any:
    import torch

    from fedbalancer.training.trainer import TorchModel

    torch.set_num_threads(1)
    module, name, given, loss = json.loads(made_by)
    if not isinstance(loss, str):
        loss = getattr(import_module(loss[0]), loss[1])
    with np.load(data) as held:
        example = held["x"][:10]
    model = TorchModel(partial(getattr(import_module(module), name), *given), loss=loss, example=lambda: example)
    _ = model.plan
    return model


def largest_mb() -> float:
    """Return the kernel's value; `getrusage` starts with that of the parent process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("tasks", nargs="*", help=f"TASK:SCALE (default: {' '.join(TASKS)})")
    made.add_argument("--files", type=Path, help="folder of the model files, TASK-SCALE.tflite or .pte")
    made.add_argument("--clients", default=CLIENTS, help="of litert, executorch and torch")
    made.add_argument("--repeats", type=int, default=3)
    made.add_argument("--batches", type=int, default=40)
    made.add_argument("--json", action="store_true")
    return made


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        be_child(*sys.argv[2:])
    else:
        main()
