"""Tasks and executors that are kept between runs, so that all runs of a process share data and workers."""

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
from fedbalancer.simulation.attacks import poison_task, poisons_data
from fedbalancer.simulation.executors import InlineExecutor, Resources
from fedbalancer.simulation.executors.result_cache import CachingExecutor
from fedbalancer.store.tracking import check_sinks
from fedbalancer.training.fast import kernels
from fedbalancer.training.timing_only import TimingOnly


class ExecutorCache:
    """Keeps the task and the executor of the last run for the next one, if that trains in the same way.

    Args:
        resources: Workers and trackers of the runs. Default: this process trains.
    """

    def __init__(self, resources: Resources | None = None) -> None:
        self.resources = resources if resources is not None else Resources()
        self._key: RunSpec | None = None
        self._task: Task | None = None
        self._executor: Executor | None = None

    def check(self, spec: RunSpec) -> None:
        """Check trackers, memory limit and device before a run starts. Devices of a Ray cluster are not checked here.

        Raises:
            BadSetting: If a tracker, the device or the memory limit does not allow the run.
            MissingData: If a package is not installed.
        """
        check_sinks(self.resources.track)
        if not spec.timing_only:
            check_memory_limit()
        if not spec.timing_only and spec.device != "cpu" and self.resources.executor != "ray":
            from fedbalancer.training.trainer import check_device

            require_torch()
            check_device(spec.device)

    def load_task(self, spec: RunSpec, task: Task | None = None) -> Task:
        """Return the task of a run.

        Args:
            spec: The run.
            task: The task, if it is loaded. Default: the last run's if it is the same, otherwise it is loaded.
        """
        key = _training_key(spec)
        if key != self._key or (task is not None and task is not self._task):
            self.close()
            self._key, self._task = key, task if task is not None else spec.load_task()
        assert self._task is not None
        return self._task

    def executor(self, spec: RunSpec, task: Task) -> Executor:
        """Return the executor of a run. It is closed with the cache, or when another task is loaded.

        Args:
            spec: The run.
            task: The loaded task.
        """
        if spec.timing_only:
            return InlineExecutor(TimingOnly(task.sizes))
        self.load_task(spec, task)
        if self._executor is None:
            executor = self.resources.make_executor(TrainerFactory(spec, task), task.sizes, spec.device)
            results, about = self.resources.results, str(_training_key(spec).to_json())
            self._executor = executor if results is None else CachingExecutor(executor, results, about)
        return self._executor

    def close(self) -> None:
        """End the workers."""
        if self._executor is not None:
            self._executor.close()
        self._key = self._task = self._executor = None

    def __enter__(self) -> ExecutorCache:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class TrainerFactory:
    """Creates the trainer of a run, also in a worker process, to which a `Task` object is sent along.

    Args:
        spec: The run.
        task: The loaded task.
        decision: The kernels that the driver uses.
    """

    def __init__(
        self, spec: RunSpec, task: Task | None = None, decision: Mapping[str, str | None] | None = None
    ) -> None:
        own = None if isinstance(spec.task, str) else task
        self._spec = replace(_training_key(spec), task=own if own is not None else spec.task)
        self._task, self._decision = task, decision

    def __call__(self) -> Trainer:
        if self._decision is not None:
            kernels.follow(self._decision)
        task = self._task if self._task is not None else self._spec.load_task()
        poisoned = poison_task(task, _attacks(self._spec), self._spec.seed)
        return trainer_for(poisoned, self._spec.backend, self._spec.device)

    def __reduce__(self) -> tuple[type[TrainerFactory], tuple[RunSpec, None, dict[str, str | None] | None]]:
        return TrainerFactory, (self._spec, None, kernels_for(self._spec))


def _training_key(spec: RunSpec) -> RunSpec:
    """Return the spec without everything that does not affect the trainer."""
    settings = {key: value for key, value in spec.overrides.items() if key == "label_noise"}  # which changes the data
    seed, attacks = 0, _attacks(spec)
    if poisons_data(attacks):  # these change the data too, for different clients with every seed
        seed, settings["attacks"] = spec.seed, attacks
    return replace(
        spec,
        method="",
        seed=seed,
        settings=settings,
        rounds=None,
        budget_s=None,
        target=None,
        timing_only=False,
        devices=None,
    )


def _attacks(spec: RunSpec) -> tuple[str, ...]:
    return resolve({key: value for key, value in spec.overrides.items() if key == "attacks"}).attacks


def kernels_for(spec: RunSpec) -> dict[str, str | None] | None:
    """Return the kernels that all processes of a run use; None if the run uses none."""
    return kernels.decide() if spec.backend == "fast" and spec.device == "cpu" and not spec.timing_only else None


def trainer_for(task: Task, backend: str = "fast", device: str = "cpu") -> Trainer:
    """Return the torch trainer of a task.

    Args:
        task: The task.
        backend: Training backend: fast or plain.
        device: Where torch computes: cpu, cuda or mps.

    Raises:
        MissingData: If torch is not installed.
    """
    require_torch()
    from fedbalancer.training.trainer import TorchTrainer

    return TorchTrainer(task, backend, device)


def require_torch() -> None:
    """Check that torch is installed.

    Raises:
        MissingData: If it is not.
    """
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingData("training needs PyTorch: pip install 'fedbalancer[torch]'") from error
