"""Experiments: one run (`run`, `resume`), comparisons (`compare`), sweeps, and experiment tracking."""

from fedbalancer.experiments.comparison import compare
from fedbalancer.experiments.execute import RunResult, execute, resume, run
from fedbalancer.experiments.merging import merge
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.store.tracking import STOP

__all__ = ["STOP", "RunResult", "RunSpec", "compare", "execute", "merge", "resume", "run"]
