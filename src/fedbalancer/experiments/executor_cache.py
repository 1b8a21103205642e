"""Tasks and executors that outlive a run, so that all runs of a process share its data and its workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType

from fedbalancer.core.errors import MissingData
from fedbalancer.core.interfaces import Executor, Trainer
from fedbalancer.core.processes import check_memory_limit
from fedbalancer.core.settings import resolve
from fedbalancer.data import Task
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.experiments.tracking import check_sinks
from fedbalancer.simulation.attacks import poison_task, poisons_data
from fedbalancer.simulation.executors import InlineExecutor, Resources
from fedbalancer.simulation.executors.result_cache import CachingExecutor
from fedbalancer.training.fast import kernels
from fedbalancer.training.timing_only import TimingOnly


class ExecutorCache:
    """The task and the executor of the last run, kept for the next one if that trains in the same way."""

    def __init__(self, resources: Resources | None = None) -> None:
        self.resources = resources if resources is not None else Resources()
        self._way: RunSpec | None = None
        self._task: Task | None = None
        self._executor: Executor | None = None

    def check(self, spec: RunSpec) -> None:
        """Refuse a sink or a device that is not here, or too low a memory limit, before a run begins. Devices of a
        cluster are known to its workers only."""
        check_sinks(self.resources.track)
        if not spec.timing_only:
            check_memory_limit()
        if not spec.timing_only and spec.device != "cpu" and self.resources.executor != "ray":
            from fedbalancer.training.trainer import check_device

            with_torch()
            check_device(spec.device)

    def load_task(self, spec: RunSpec, task: Task | None = None) -> Task:
        """The task of a run: `task` if it is loaded already, or that of the last run if it is the same."""
        way = _way_to_train(spec)
        if way != self._way or (task is not None and task is not self._task):
            self.close()
            self._way, self._task = way, task if task is not None else spec.load_task()
        assert self._task is not None
        return self._task

    def executor(self, spec: RunSpec, task: Task) -> Executor:
        """The executor for a run of a loaded task. It is closed with the cache, or when a run of another task comes."""
        if spec.timing_only:
            return InlineExecutor(TimingOnly(task.sizes))
        self.load_task(spec, task)
        if self._executor is None:
            executor = self.resources.make_executor(TrainerMaker(spec, task), task.sizes, spec.device)
            results, about = self.resources.results, str(_way_to_train(spec).to_json())
            self._executor = executor if results is None else CachingExecutor(executor, results, about)
        return self._executor

    def close(self) -> None:
        """End the workers; the next run would start new ones."""
        if self._executor is not None:
            self._executor.close()
        self._way = self._task = self._executor = None

    def __enter__(self) -> ExecutorCache:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class TrainerMaker:
    """Makes the trainer of a run. Sent to a worker, it takes a task of the user's own along; one with a name is loaded
    there again."""

    def __init__(
        self, spec: RunSpec, task: Task | None = None, decided: Mapping[str, str | None] | None = None
    ) -> None:
        own = None if isinstance(spec.task, str) else task
        self._spec = replace(_way_to_train(spec), task=own if own is not None else spec.task)
        self._task, self._decided = task, decided

    def __call__(self) -> Trainer:
        if self._decided is not None:
            kernels.follow(self._decided)
        task = self._task if self._task is not None else self._spec.load_task()
        poisoned = poison_task(task, _attacks(self._spec), self._spec.seed)
        return trainer_for(poisoned, self._spec.backend, self._spec.device)

    def __reduce__(self) -> tuple[type[TrainerMaker], tuple[RunSpec, None, dict[str, str | None] | None]]:
        return TrainerMaker, (self._spec, None, kernels_for(self._spec))


def _way_to_train(spec: RunSpec) -> RunSpec:
    """The spec without all that makes no difference to a trainer."""
    settings = {key: value for key, value in spec.overrides.items() if key == "label_noise"}  # which is of the data
    seed, attacks = 0, _attacks(spec)
    if poisons_data(attacks):  # and so are these, of other clients in every run
        seed, settings["attacks"] = spec.seed, attacks
    return replace(
        spec, method="", seed=seed, settings=settings, rounds=None, budget_s=None, target=None, timing_only=False
    )


def _attacks(spec: RunSpec) -> tuple[str, ...]:
    return resolve({key: value for key, value in spec.overrides.items() if key == "attacks"}).attacks


def kernels_for(spec: RunSpec) -> dict[str, str | None] | None:
    """Which kernels all processes that carry out a run are to use; None if it uses none."""
    return kernels.decide() if spec.backend == "fast" and spec.device == "cpu" and not spec.timing_only else None


def trainer_for(task: Task, backend: str = "fast", device: str = "cpu") -> Trainer:
    """The torch trainer of a task."""
    with_torch()
    from fedbalancer.training.trainer import TorchTrainer

    return TorchTrainer(task, backend, device)


def with_torch() -> None:
    """Refuse to train where torch is not installed."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingData("training needs PyTorch; type: pip install 'fedbalancer[torch]'") from error
