"""Who does the training work: this process, a pool of processes, or a Ray cluster."""

from fedbalancer.engine.executors.adaptive import AdaptiveExecutor
from fedbalancer.engine.executors.inline import InlineExecutor
from fedbalancer.engine.executors.pool import PoolExecutor
from fedbalancer.engine.executors.ray import RayExecutor
from fedbalancer.engine.executors.registry import EXECUTORS, Resources

__all__ = ["EXECUTORS", "AdaptiveExecutor", "InlineExecutor", "PoolExecutor", "RayExecutor", "Resources"]
