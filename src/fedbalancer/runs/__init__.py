"""Whole runs: one method on one task, and comparisons of many."""

from fedbalancer.runs.compare import compare
from fedbalancer.runs.execute import execute, resume, run
from fedbalancer.runs.result import RunResult
from fedbalancer.runs.spec import RunSpec

__all__ = ["RunResult", "RunSpec", "compare", "execute", "resume", "run"]
