"""Executors are kept over the runs of a task, with at most one worker per core by default."""

from __future__ import annotations

import cloudpickle
import pytest
from experiments import tinytask

from fedbalancer.core.errors import BadSetting
from fedbalancer.experiments.executor_cache import ExecutorCache, TrainerFactory, trainer_for
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.simulation.executors import AdaptiveExecutor, InlineExecutor, PoolExecutor, Resources

TASK = tinytask.load()
SPEC = RunSpec(task=TASK, method="fedavg+1t")


def test_runs_of_the_same_task_share_an_executor_and_others_get_a_new_one() -> None:
    with ExecutorCache() as executors:
        first = executors.executor(SPEC, TASK)
        assert executors.executor(RunSpec(task=TASK, method="fedbalancer", seed=3), TASK) is first
        assert executors.executor(RunSpec(task=TASK, method="fedavg+1t", backend="plain"), TASK) is not first
        other = tinytask.load()
        assert executors.executor(RunSpec(task=other, method="fedavg+1t"), other) is not first


def test_several_runs_on_one_pool_keep_their_processes() -> None:
    with ExecutorCache(Resources(workers=2)) as executors:
        executor = executors.executor(SPEC, TASK)
        assert isinstance(executor, PoolExecutor)
        weights = executor.initial_weights(0)
        assert executors.executor(RunSpec(task=TASK, method="prox+1t", seed=1), TASK) is executor
        assert executor.evaluate(weights) == executor.evaluate(weights)


def test_a_run_without_training_needs_nobody() -> None:
    executor = ExecutorCache(Resources(workers=4)).executor(
        RunSpec(task=TASK, method="fedavg+1t", timing_only=True), TASK
    )
    assert isinstance(executor, InlineExecutor)


@pytest.mark.parametrize(
    ("workers", "cores", "kind"),
    [(1, 8, InlineExecutor), (None, 1, InlineExecutor), (None, 8, AdaptiveExecutor)],
)
def test_unless_told_it_takes_what_the_cores_allow(workers: int | None, cores: int, kind: type) -> None:
    with ExecutorCache(Resources(workers=workers, cores=cores)) as executors:
        assert type(executors.executor(SPEC, TASK)) is kind


def test_a_task_of_one_client_needs_no_pool() -> None:
    alone = tinytask.load(clients={"ann": tinytask.samples(30, 1)})
    with ExecutorCache(Resources(workers=None, cores=8)) as executors:
        assert isinstance(executors.executor(RunSpec(task=alone, method="fedavg+1t"), alone), InlineExecutor)


def test_a_device_that_is_not_here_is_refused_before_anything_runs() -> None:
    torch = pytest.importorskip("torch")
    if torch.backends.mps.is_available():
        pytest.skip("this machine has it")
    with pytest.raises(BadSetting, match=r"'mps'.*cpu"):
        ExecutorCache().check(RunSpec(task=TASK, method="fedavg+1t", device="mps"))
    ExecutorCache().check(RunSpec(task=TASK, method="fedavg+1t", device="mps", timing_only=True))


def test_a_task_with_a_name_is_loaded_once_for_all_runs_and_again_for_another_size() -> None:
    with ExecutorCache() as executors:
        eight = RunSpec(task="synthetic", method="fedavg+1t", users=8)
        task = executors.load_task(eight)
        assert executors.load_task(RunSpec(task="synthetic", method="prox+1t", seed=3, users=8, rounds=2)) is task
        assert len(executors.load_task(RunSpec(task="synthetic", method="fedavg+1t", users=9)).sizes) == 9


def test_a_named_task_does_not_travel_to_workers_and_one_of_the_users_own_does() -> None:
    task = RunSpec(task="synthetic", users=8).load_task()
    named, own = TrainerFactory(RunSpec(task="synthetic", users=8), task), TrainerFactory(SPEC, TASK)
    assert len(cloudpickle.dumps(named)) < 2000
    for maker, found in ((named, task), (own, TASK)):
        weights = maker().initial_weights(0)
        assert cloudpickle.loads(cloudpickle.dumps(maker))().evaluate(weights) == trainer_for(found).evaluate(weights)
