"""Server and engine of a run, as its specification says."""

from __future__ import annotations

from experiments import tinytask

from fedbalancer.experiments.simulation import build
from fedbalancer.experiments.spec import RunSpec


def test_a_model_that_travels_as_a_larger_one_is_charged_so_compressed_or_not() -> None:
    plain, wide = tinytask.load(), tinytask.load(model_bytes=10_000_000)
    for method in ("fedavg+1t+signsgd", "fedavg+1t+subsample"):
        sent = [build(RunSpec(task=task, method=method), task).engine for task in (plain, wide)]
        assert sent[0].up_bytes < sent[0].down_bytes
        assert sent[1].down_bytes == 10_000_000
        share, same = (engine.up_bytes / engine.down_bytes for engine in sent)
        assert abs(share - same) < 1e-6
    assert build(RunSpec(task=wide, method="fedavg+1t"), wide).engine.up_bytes == 10_000_000
