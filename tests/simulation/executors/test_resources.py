"""The number of workers: as requested, or at most one per core."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from simulation.executors.trainers import Large, ShowsGpu

from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.simulation.executors import (
    EXECUTORS,
    AdaptiveExecutor,
    InlineExecutor,
    PoolExecutor,
    RayExecutor,
    Resources,
)
from fedbalancer.simulation.executors.resources import share_gpus

SIZES = {"ann": 3, "bob": 4}


@given(st.sampled_from([1.0, 0.5, 1 / 3, 0.3, 0.25, 0.1]), st.none() | st.integers(1, 40), st.integers(0, 4))
def test_no_gpu_has_more_workers_than_fit(share: float, workers: int | None, gpus: int) -> None:
    names = [f"g{number}" for number in range(gpus)]
    fitting = math.floor(1 / share + 1e-9) * gpus
    if not fitting or (workers or 1) > fitting:
        with pytest.raises(BadSetting, match=f"the {gpus} GPUs of this machine have room for {fitting}"):
            share_gpus(share, workers, names)
        return
    chosen = share_gpus(share, workers, names)
    assert len(chosen) == (workers or fitting)
    assert all(chosen.count(name) * share <= 1 + 1e-9 for name in names)


def test_every_worker_sees_its_gpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for gpus, seen in (([], "all"), (["3"], "3")):
        executor = PoolExecutor(ShowsGpu, 1, SIZES, gpus)
        try:
            assert executor.layout[0][0] == seen
        finally:
            executor.close()


def test_shares_of_gpus_need_workers_and_the_device_cuda() -> None:
    with pytest.raises(BadSetting, match="gpus = 2 must be above 0 and at most 1"):
        Resources(gpus=2.0)
    with pytest.raises(BadSetting, match="the executor is inline"):
        Resources(gpus=0.5, executor="inline")
    with pytest.raises(BadSetting, match=r"gpus = 0.5 needs the device cuda \(--device cuda\), not cpu"):
        Resources(gpus=0.5).make_executor(Large, SIZES)


CLASSES = {"inline": InlineExecutor, "pool": PoolExecutor, "ray": RayExecutor}


def test_every_name_has_its_class_and_no_other_is_known() -> None:
    assert list(EXECUTORS) == list(CLASSES)
    for name in ("inline", "pool"):
        executor = Resources(executor=name, workers=1).make_executor(Large, SIZES)
        assert type(executor) is CLASSES[name]
        executor.close()
    with pytest.raises(UnknownName, match="did you mean ray"):
        Resources(executor="rya")


@pytest.mark.parametrize(
    ("workers", "cores", "device", "kind"),
    [
        (None, 2, "cpu", AdaptiveExecutor),
        (None, 1, "cpu", InlineExecutor),
        (None, 2, "mps", InlineExecutor),
        (1, 2, "cpu", InlineExecutor),
        (2, 1, "cpu", PoolExecutor),
    ],
)
def test_unless_told_it_takes_what_workers_cores_and_device_allow(
    workers: int | None, cores: int, device: str, kind: type
) -> None:
    executor = Resources(workers=workers, cores=cores).make_executor(Large, SIZES, device)
    assert type(executor) is kind
    executor.close()


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
    try:
        resources = Resources(workers=workers, executor=executor, cores=cores)
    except BadSetting:
        assume(False)
    side_by_side, each = resources.divide(runs, jobs)
    assert 1 <= side_by_side <= runs
    if jobs is not None:
        assert side_by_side == min(jobs, runs)
    if workers is None:
        assert side_by_side * each.cores <= max(cores, side_by_side)
    elif jobs is None:
        assert side_by_side * workers <= max(cores, workers)
    if jobs is None and workers is None and executor != "ray":
        # All the cores are used, but for what does not divide.
        assert side_by_side * (each.cores + 1) > min(cores, runs)


def test_less_than_one_job_is_refused() -> None:
    with pytest.raises(BadSetting, match="jobs = 0"):
        Resources(cores=2).divide(3, jobs=0)
