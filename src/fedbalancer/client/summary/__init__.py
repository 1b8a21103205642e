"""Summaries: what a client releases about its losses and its speed."""

from fedbalancer.client.summary.histogram import Histogram, SecAggHistogram
from fedbalancer.client.summary.minimal import FractionTracker, Silent
from fedbalancer.client.summary.noise import coarse, system_generator, without_counts
from fedbalancer.client.summary.statistics import LossesBySteps, LossStatistics

__all__ = [
    "FractionTracker",
    "Histogram",
    "LossStatistics",
    "LossesBySteps",
    "SecAggHistogram",
    "Silent",
    "coarse",
    "system_generator",
    "without_counts",
]
