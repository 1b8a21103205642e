"""Whole runs: one method on one task, and comparisons of many."""

from fedbalancer.experiments.compare import compare
from fedbalancer.experiments.execute import execute, resume, run
from fedbalancer.experiments.result import RunResult
from fedbalancer.experiments.spec import RunSpec

__all__ = ["RunResult", "RunSpec", "compare", "execute", "resume", "run"]
