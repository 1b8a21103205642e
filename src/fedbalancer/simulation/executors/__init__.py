"""Executors, which train clients in this process, in a pool of processes, or on a Ray cluster."""

from fedbalancer.simulation.executors.pool import AdaptiveExecutor, InlineExecutor, PoolExecutor
from fedbalancer.simulation.executors.ray import RayExecutor
from fedbalancer.simulation.executors.resources import EXECUTORS, Resources

__all__ = ["EXECUTORS", "AdaptiveExecutor", "InlineExecutor", "PoolExecutor", "RayExecutor", "Resources"]
