"""The executors by name, and the resources that a run trains with."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.interfaces import Executor, Trainer
from fedbalancer.core.processes import usable_cores
from fedbalancer.simulation.executors.pool import AdaptiveExecutor, InlineExecutor, PoolExecutor
from fedbalancer.simulation.executors.ray import RayExecutor

MakeTrainer = Callable[[], Trainer]
Sizes = Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The resources that a run trains with; they never change its results.

    Args:
        workers: Number of workers. None: start in this process, and switch to a pool of all `cores` if the run is long.
        executor: `inline`, `pool` or `ray`. Default: inline for one worker, a pool for several.
        address: Address of a Ray cluster.
        gpus: Share of a GPU that each worker gets, for the device cuda: with 0.25, four workers share one. Default: a
            whole one with Ray; the workers of a pool all use the device of the run.
        cores: CPU cores to use. Default: all that this process may use.
        results: Folder in which runs share the results that they compute.
        track: Experiment trackers to log to.

    Raises:
        BadSetting: If the options contradict each other.
        UnknownName: If there is no such executor.
    """

    workers: int | None = 1
    executor: str | None = None
    address: str | None = None
    gpus: float | None = None
    cores: int = field(default_factory=usable_cores)
    results: Path | None = field(default=None, repr=False)
    track: tuple[Any, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise BadSetting(f"workers = {self.workers} must be at least 1")
        if self.executor is not None and self.executor not in EXECUTORS:
            raise UnknownName("executor", self.executor, EXECUTORS)
        if self.executor == "inline" and self.workers not in (None, 1):
            raise BadSetting(f"workers = {self.workers}: executor inline has 1 worker; use pool or ray for more")
        if self.address is not None and self.executor != "ray":
            raise BadSetting(f"address = {self.address!r} needs the executor ray (--executor ray)")
        if self.gpus is not None and not 0 < self.gpus <= 1:
            raise BadSetting(f"gpus = {self.gpus:g} must be above 0 and at most 1: the share of a GPU per worker")
        if self.gpus is not None and self.executor == "inline":
            raise BadSetting(f"gpus = {self.gpus:g} needs workers, but the executor is inline; use pool or ray")

    def make_executor(self, make_trainer: MakeTrainer, sizes: Sizes, device: str = "cpu") -> Executor:
        """Make the executor of a run.

        Args:
            make_trainer: Makes the trainer of each worker.
            sizes: Number of samples of each client.
            device: Device that trains, such as `cpu` or `cuda:0`.

        Raises:
            BadSetting: If GPUs are to be shared and the device is not cuda.
        """
        if self.gpus is not None and device != "cuda":
            raise BadSetting(f"gpus = {self.gpus:g} needs the device cuda (--device cuda), not {device}")
        limited = replace(self, cores=min(self.cores, len(sizes)))
        if self.executor is None and self.workers is None and limited.cores > 1 and device == "cpu":
            return AdaptiveExecutor(make_trainer(), lambda: PoolExecutor(make_trainer, limited.cores, sizes))
        name = self.executor or ("pool" if (self.workers or 1) > 1 or self.gpus is not None else "inline")
        return EXECUTORS[name](limited, make_trainer, sizes, (self.gpus or 1.0) if device.startswith("cuda") else 0.0)

    def divide(self, runs: int, jobs: int | None = None) -> tuple[int, Resources]:
        """Divide the resources among several runs.

        Args:
            runs: Number of runs.
            jobs: Number of parallel runs. Default: as many as the cores allow.

        Returns:
            The number of parallel runs, and the resources of each.

        Raises:
            BadSetting: If `jobs` is below 1.

        >>> Resources(workers=None, cores=8).divide(runs=24)
        (8, Resources(workers=None, executor=None, address=None, gpus=None, cores=1))
        >>> Resources(workers=None, cores=8).divide(runs=2)[1].cores
        4
        >>> Resources(workers=3, cores=8).divide(runs=24)[0]
        2
        """
        if jobs is not None and jobs < 1:
            raise BadSetting(f"jobs = {jobs} must be at least 1")
        fitting = 1 if self.executor == "ray" else max(1, self.cores // (self.workers or 1))
        parallel = min(jobs if jobs is not None else fitting, runs)
        return parallel, replace(self, cores=max(1, self.cores // parallel))


def _make_pool(own: Resources, make_trainer: MakeTrainer, sizes: Sizes, gpus: float) -> PoolExecutor:
    if own.gpus is None:
        return PoolExecutor(make_trainer, own.workers or own.cores, sizes)
    shares = share_gpus(own.gpus, own.workers, visible_gpus())
    return PoolExecutor(make_trainer, len(shares), sizes, shares)


def share_gpus(share: float, workers: int | None, gpus: Sequence[str]) -> list[str]:
    """Return the GPU of every worker.

    Args:
        share: Share of a GPU that a worker gets.
        workers: Number of workers. None: as many as fit.
        gpus: The GPUs.

    Raises:
        BadSetting: If the workers do not fit.

    >>> share_gpus(0.5, 3, ["0", "1"])
    ['0', '0', '1']
    """
    each = int(1 / share + 1e-9)
    most = each * len(gpus)
    if not most or (workers or 1) > most:
        wanted = f"workers = {workers}" if workers else "a worker"
        raise BadSetting(f"{wanted} with gpus = {share:g}: the {len(gpus)} GPUs of this machine have room for {most}")
    return [gpus[number // each] for number in range(workers or most)]


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that this process may use, as in `CUDA_VISIBLE_DEVICES`."""
    import torch

    listed = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in listed.split(",") if name.strip()]
    return (names or [str(number) for number in range(torch.cuda.device_count())])[: torch.cuda.device_count()]


EXECUTORS: Mapping[str, Callable[[Resources, MakeTrainer, Sizes, float], Executor]] = {
    "inline": lambda own, make_trainer, sizes, gpus: InlineExecutor(make_trainer()),
    "pool": _make_pool,
    "ray": lambda own, make_trainer, sizes, gpus: RayExecutor(make_trainer, own.workers, sizes, own.address, gpus),
}
"""The executors by name, as in `--executor`. A new executor is a class in its own file, and a line here."""
