"""The executors by name, and who trains the clients of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.interfaces import Executor, Trainer
from fedbalancer.core.processes import usable_cores
from fedbalancer.simulation.executors.adaptive import AdaptiveExecutor
from fedbalancer.simulation.executors.inline import InlineExecutor
from fedbalancer.simulation.executors.pool import PoolExecutor
from fedbalancer.simulation.executors.ray import RayExecutor

MakeTrainer = Callable[[], Trainer]
Sizes = Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Who trains the clients of a run: an `executor` (inline, pool or ray, the latter at `address`) with `workers`.

    Without an `executor`, one worker is this process and several are a pool. If `workers` are not given either, a run
    starts in this process and changes over to a pool of all `cores` if it turns out to be long. In the folder `results`
    runs find what others have computed already, and leave what they compute. `track` are the sinks that are told what
    goes on in the runs; they change no result either.
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
            raise BadSetting(f"workers = {self.workers}: the executor inline has one; take pool or ray for more")
        if self.address is not None and self.executor != "ray":
            raise BadSetting(f"address = {self.address!r} is for the executor ray (--executor ray)")

    def make_executor(self, make_trainer: MakeTrainer, sizes: Sizes, device: str = "cpu") -> Executor:
        """The executor for a task whose clients have these `sizes`, trained on `device`."""
        told = replace(self, cores=min(self.cores, len(sizes)))
        if self.executor is None and self.workers is None and told.cores > 1 and device == "cpu":
            return AdaptiveExecutor(make_trainer(), lambda: PoolExecutor(make_trainer, told.cores, sizes))
        name = self.executor or ("pool" if (self.workers or 1) > 1 else "inline")
        return EXECUTORS[name](told, make_trainer, sizes, 1.0 if device.startswith("cuda") else 0.0)

    def shared_out(self, runs: int, jobs: int | None = None) -> tuple[int, Resources]:
        """How many of the `runs` go side by side (as many as the cores allow, unless `jobs` says it), and what each of
        them gets.

        >>> Resources(workers=None, cores=8).shared_out(runs=24)
        (8, Resources(workers=None, executor=None, address=None, cores=1))
        >>> Resources(workers=None, cores=8).shared_out(runs=2)[1].cores
        4
        >>> Resources(workers=3, cores=8).shared_out(runs=24)[0]
        2
        """
        if jobs is not None and jobs < 1:
            raise BadSetting(f"jobs = {jobs} must be at least 1")
        fitting = 1 if self.executor == "ray" else max(1, self.cores // (self.workers or 1))
        side_by_side = min(jobs if jobs is not None else fitting, runs)
        return side_by_side, replace(self, cores=max(1, self.cores // side_by_side))


EXECUTORS: Mapping[str, Callable[[Resources, MakeTrainer, Sizes, float], Executor]] = {
    "inline": lambda told, make_trainer, sizes, gpus: InlineExecutor(make_trainer()),
    "pool": lambda told, make_trainer, sizes, gpus: PoolExecutor(make_trainer, told.workers or told.cores, sizes),
    "ray": lambda told, make_trainer, sizes, gpus: RayExecutor(make_trainer, told.workers, sizes, told.address, gpus),
}
"""What `--executor` may name. A new executor is a class in a file of its own, and a line here."""
