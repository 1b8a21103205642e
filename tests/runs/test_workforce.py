"""Who trains: kept over the runs of a task, and never more of them than there are cores unless asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import tinytask

from fedbalancer.engine.executors import AdaptiveExecutor, InlineExecutor, PoolExecutor
from fedbalancer.errors import BadSetting
from fedbalancer.runs.spec import RunSpec
from fedbalancer.runs.workforce import Hands, Workforce

TASK = tinytask.load()
SPEC = RunSpec(TASK, "fedavg+1t")


def test_runs_of_the_same_task_share_an_executor_and_others_get_a_new_one() -> None:
    with Workforce() as workforce:
        first = workforce.executor(SPEC, TASK)
        assert workforce.executor(RunSpec(TASK, "fedbalancer", 3), TASK) is first
        assert workforce.executor(RunSpec(TASK, "fedavg+1t", engine="plain"), TASK) is not first
        other = tinytask.load()
        assert workforce.executor(RunSpec(other, "fedavg+1t"), other) is not first


def test_several_runs_on_one_pool_keep_their_processes() -> None:
    with Workforce(workers=2) as workforce:
        executor = workforce.executor(SPEC, TASK)
        assert isinstance(executor, PoolExecutor)
        weights = executor.initial_weights(0)
        assert workforce.executor(RunSpec(TASK, "prox+1t", 1), TASK) is executor
        assert executor.evaluate(weights) == executor.evaluate(weights)


def test_a_run_without_training_needs_nobody() -> None:
    executor = Workforce(workers=4).executor(RunSpec(TASK, "fedavg+1t", timing_only=True), TASK)
    assert isinstance(executor, InlineExecutor)


@pytest.mark.parametrize(
    ("workers", "cores", "kind"),
    [(1, 8, InlineExecutor), (None, 1, InlineExecutor), (None, 8, AdaptiveExecutor)],
)
def test_unless_told_it_takes_what_the_cores_allow(workers: int | None, cores: int, kind: type) -> None:
    with Workforce(workers, cores=cores) as workforce:
        assert type(workforce.executor(SPEC, TASK)) is kind


def test_a_task_of_one_client_needs_no_pool() -> None:
    alone = tinytask.load(clients={"ann": tinytask.samples(30, 1)})
    with Workforce(None, cores=8) as workforce:
        assert isinstance(workforce.executor(RunSpec(alone, "fedavg+1t"), alone), InlineExecutor)


def test_a_device_that_is_not_here_is_refused_before_anything_runs() -> None:
    torch = pytest.importorskip("torch")
    if torch.backends.mps.is_available():
        pytest.skip("this machine has it")
    with pytest.raises(BadSetting, match=r"'mps'.*cpu"):
        Workforce().check(RunSpec(TASK, "fedavg+1t", device="mps"))
    Workforce().check(RunSpec(TASK, "fedavg+1t", device="mps", timing_only=True))


@given(
    st.none() | st.integers(1, 64),
    st.none() | st.integers(1, 64),
    st.sampled_from([None, "inline", "pool", "ray"]),
    st.integers(1, 100),
    st.integers(1, 64),
)
def test_what_is_not_given_never_asks_for_more_than_the_cores(
    jobs: int | None, workers: int | None, executor: str | None, runs: int, cores: int
) -> None:
    side_by_side, options = Hands(jobs, workers, executor).shared_out(runs, cores)
    assert 1 <= side_by_side <= runs
    if jobs is not None:
        assert side_by_side == min(jobs, runs)
    if workers is None:
        assert side_by_side * options["cores"] <= max(cores, side_by_side)
    elif jobs is None:
        assert side_by_side * workers <= max(cores, workers)
    if jobs is None and workers is None and executor != "ray":
        # All the cores are used, but for what does not divide.
        assert side_by_side * (options["cores"] + 1) > min(cores, runs)


def test_less_than_one_job_is_refused() -> None:
    with pytest.raises(BadSetting, match="jobs = 0"):
        Hands(jobs=0).shared_out(3, 2)
