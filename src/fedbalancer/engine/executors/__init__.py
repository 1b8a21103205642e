"""Who does the training work: this process, a pool of processes."""

from fedbalancer.engine.executors.inline import InlineExecutor
from fedbalancer.engine.executors.pool import PoolExecutor

__all__ = ["InlineExecutor", "PoolExecutor"]
