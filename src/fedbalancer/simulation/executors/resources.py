"""The executors by name, and the resources that a run trains with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.interfaces import Executor, Trainer
from fedbalancer.core.processes import usable_cores
from fedbalancer.simulation.executors.inline import AdaptiveExecutor, InlineExecutor
from fedbalancer.simulation.executors.pool import PoolExecutor
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

    def make_executor(self, make_trainer: MakeTrainer, sizes: Sizes, device: str = "cpu") -> Executor:
        """Make the executor of a run.

        Args:
            make_trainer: Makes the trainer of each worker.
            sizes: Number of samples of each client.
            device: Device that trains, such as `cpu` or `cuda:0`.
        """
        limited = replace(self, cores=min(self.cores, len(sizes)))
        if self.executor is None and self.workers is None and limited.cores > 1 and device == "cpu":
            return AdaptiveExecutor(make_trainer(), lambda: PoolExecutor(make_trainer, limited.cores, sizes))
        name = self.executor or ("pool" if (self.workers or 1) > 1 else "inline")
        return EXECUTORS[name](limited, make_trainer, sizes, 1.0 if device.startswith("cuda") else 0.0)

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
        (8, Resources(workers=None, executor=None, address=None, cores=1))
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


EXECUTORS: Mapping[str, Callable[[Resources, MakeTrainer, Sizes, float], Executor]] = {
    "inline": lambda own, make_trainer, sizes, gpus: InlineExecutor(make_trainer()),
    "pool": lambda own, make_trainer, sizes, gpus: PoolExecutor(make_trainer, own.workers or own.cores, sizes),
    "ray": lambda own, make_trainer, sizes, gpus: RayExecutor(make_trainer, own.workers, sizes, own.address, gpus),
}
"""The executors by name, as in `--executor`. A new executor is a class in its own file, and a line here."""
