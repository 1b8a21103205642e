"""Who does the training work: this process, a pool of processes, or a Ray cluster."""

from fedbalancer.simulation.executors.adaptive import AdaptiveExecutor
from fedbalancer.simulation.executors.inline import InlineExecutor
from fedbalancer.simulation.executors.pool import PoolExecutor
from fedbalancer.simulation.executors.ray import RayExecutor
from fedbalancer.simulation.executors.registry import EXECUTORS, Resources

__all__ = ["EXECUTORS", "AdaptiveExecutor", "InlineExecutor", "PoolExecutor", "RayExecutor", "Resources"]
