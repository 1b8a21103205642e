"""Random data, starting weights and orders of samples for every workload, written once for all engines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from work import WORKLOADS, Workload

from fedbalancer.client.work import epochs as epoch_orders
from fedbalancer.core.randomness import integer_seed, stream
from fedbalancer.core.types import ClientWork

SEED = 0


def prepare(folder: Path, name: str, clients: int, epochs: int, rounds: int) -> None:
    """Write the folder that `Work` reads."""
    workload = WORKLOADS[name]
    clients, epochs = workload.clients or clients, workload.epochs or epochs
    sizes = client_sizes(workload.samples, clients)
    rng = stream(SEED, f"peers {name}")
    total = int(sizes.sum())
    if workload.symbols is None:
        x = rng.normal(size=(total, *workload.shape)).astype(np.float32)
    else:
        x = rng.integers(workload.symbols, size=(total, *workload.shape))
    torch.manual_seed(SEED)
    weights = nn.utils.parameters_to_vector(workload.model().parameters()).detach().numpy()
    arrays = {
        "sizes": sizes,
        "x": x,
        "y": rng.integers(workload.classes, size=total),
        "weights": weights,
        "orders": np.stack([_round(workload, sizes, epochs, number) for number in range(1, rounds + 1)]),
    }
    (folder / name).mkdir(parents=True)
    for key, array in arrays.items():
        np.save(folder / name / f"{key}.npy", array)


def client_sizes(samples: int, clients: int) -> NDArray[np.int64]:
    """Sizes within a tenth of `samples`, so that last batches are short. Two neighbours have the same size: an engine
    that deals clients out in turn has nothing to balance."""
    pairs = stream(SEED, "peers sizes").integers(-(samples // 10), samples // 10 + 1, size=(clients + 1) // 2)
    return (samples + np.repeat(pairs, 2)[:clients]).astype(np.int64)


def client_name(client: int) -> str:
    """Names of our clients, in the order of their numbers."""
    return f"c{client:04d}"


def _round(workload: Workload, sizes: NDArray[np.int64], epochs: int, number: int) -> NDArray[np.int64]:
    """(epoch, sample): the orders that our engine draws itself; the others are given them."""
    return np.concatenate(
        [_orders(workload, client, int(size), epochs, number) for client, size in enumerate(sizes)], axis=1
    )


def _orders(workload: Workload, client: int, size: int, epochs: int, number: int) -> NDArray[np.int64]:
    name = client_name(client)
    steps = epochs * -(-size // workload.batch_size)
    seed = integer_seed(SEED, "train", number, name)
    work = ClientWork(name, np.arange(size), steps, workload.batch_size, workload.learning_rate, 0.0, None, seed)
    return np.stack(list(epoch_orders(work)))
