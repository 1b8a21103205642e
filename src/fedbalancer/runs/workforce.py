"""Who trains: executors that outlive a run, so that all runs of a command share their processes and their data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

from fedbalancer.client.timing_only import TimingOnly
from fedbalancer.engine.executors import AdaptiveExecutor, InlineExecutor, PoolExecutor, RayExecutor
from fedbalancer.errors import BadSetting, MissingData, UnknownName
from fedbalancer.processes import usable_cores
from fedbalancer.protocols import Executor, Trainer
from fedbalancer.runs.spec import RunSpec
from fedbalancer.tasks import Task, load_task

EXECUTORS = ("inline", "pool", "ray")


class Workforce:
    """An executor for every run that asks, made when first asked for and kept while the task stays the same.

    Without an `executor`, one worker is this process and several are a pool. If `workers` are not given either, a run
    starts in this process and changes over to a pool of all `cores` if it turns out to be long.
    """

    def __init__(
        self,
        workers: int | None = 1,
        executor: str | None = None,
        address: str | None = None,
        cores: int | None = None,
    ) -> None:
        if workers is not None and workers < 1:
            raise BadSetting(f"workers = {workers} must be at least 1")
        if executor is not None and executor not in EXECUTORS:
            raise UnknownName("executor", executor, EXECUTORS)
        if executor == "inline" and workers not in (None, 1):
            raise BadSetting(f"workers = {workers}: the executor inline has one; take pool or ray for more")
        if address is not None and executor != "ray":
            raise BadSetting(f"address = {address!r} is for the executor ray (--executor ray)")
        self._workers = workers
        self._kind = executor
        self._address = address
        self._cores = cores if cores is not None else usable_cores()
        self._kept: tuple[Task, str, str, Executor] | None = None

    def check(self, spec: RunSpec) -> None:
        """Refuse a device that is not here, before a run begins. Those of a cluster are known to its workers only."""
        if not spec.timing_only and spec.device != "cpu" and self._kind != "ray":
            from fedbalancer.client.torch_device import checked_device

            with_torch()
            checked_device(spec.device)

    def executor(self, spec: RunSpec, task: Task) -> Executor:
        """The executor for a run. It is closed with the workforce, or when a run of another task comes."""
        if spec.timing_only:
            return InlineExecutor(TimingOnly(task.sizes))
        if self._kept is not None:
            kept, engine, device, executor = self._kept
            if kept is task and (engine, device) == (spec.engine, spec.device):
                return executor
            self.close()
        executor = self._made(spec, task)
        self._kept = (task, spec.engine, spec.device, executor)
        return executor

    def close(self) -> None:
        """End the processes; the next run would start new ones."""
        if self._kept is not None:
            self._kept[3].close()
        self._kept = None

    def __enter__(self) -> Workforce:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _made(self, spec: RunSpec, task: Task) -> Executor:
        make = _recipe(spec, task)
        cores = min(self._cores, len(task.sizes))
        if self._kind == "ray":
            gpus = 1.0 if spec.device.startswith("cuda") else 0.0
            return RayExecutor(make, self._workers, task.sizes, self._address, gpus)
        if self._kind == "pool" or (self._kind is None and self._workers is not None and self._workers > 1):
            return PoolExecutor(make, self._workers or cores, task.sizes)
        trainer = trainer_for(task, spec.engine, spec.device)
        if self._kind == "inline" or self._workers == 1 or cores == 1 or spec.device != "cpu":
            return InlineExecutor(trainer)
        return AdaptiveExecutor(trainer, lambda: PoolExecutor(make, cores, task.sizes))


@dataclass(frozen=True)
class Hands:
    """How many runs go side by side, and who trains the clients of each. What is not given shares the cores."""

    jobs: int | None = None
    workers: int | None = None
    executor: str | None = None
    address: str | None = None

    def shared_out(self, runs: int, cores: int) -> tuple[int, dict[str, Any]]:
        """Runs side by side, and the arguments of each one's `Workforce`.

        >>> Hands().shared_out(runs=24, cores=8)
        (8, {'workers': None, 'executor': None, 'address': None, 'cores': 1})
        >>> Hands().shared_out(runs=2, cores=8)[1]["cores"], Hands(workers=3).shared_out(runs=24, cores=8)[0]
        (4, 2)
        """
        fitting = 1 if self.executor == "ray" else max(1, min(runs, cores // (self.workers or 1)))
        if self.jobs is not None and self.jobs < 1:
            raise BadSetting(f"jobs = {self.jobs} must be at least 1")
        jobs = min(self.jobs, runs) if self.jobs is not None else fitting
        given = {"workers": self.workers, "executor": self.executor, "address": self.address}
        return jobs, {**given, "cores": max(1, cores // jobs)}


def _recipe(spec: RunSpec, task: Task) -> partial[Trainer]:
    """How a worker makes its trainer: a task with a name is loaded there, one of the user's own travels."""
    if isinstance(spec.task, str):
        return partial(_named, spec.task, spec.scale, spec.users, spec.variant, spec.engine, spec.device)
    return partial(trainer_for, task, spec.engine, spec.device)


def _named(name: str, scale: str, users: int | None, variant: str | None, engine: str, device: str) -> Trainer:
    return trainer_for(load_task(name, scale=scale, users=users, variant=variant), engine, device)


def trainer_for(task: Task, engine: str = "fast", device: str = "cpu") -> Trainer:
    """The torch trainer of a task."""
    with_torch()
    from fedbalancer.client.train import TorchTrainer

    return TorchTrainer(task, engine, device)


def with_torch() -> None:
    """Refuse to train where torch is not installed."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingData("training needs PyTorch; type: pip install 'fedbalancer[torch]'") from error
