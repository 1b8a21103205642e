"""Summaries: what a client releases about its losses and its speed."""

from fedbalancer.client.summary.histogram import Histogram, SecAggHistogram
from fedbalancer.client.summary.minimal import FractionTracker, Silent
from fedbalancer.client.summary.noise import system_generator
from fedbalancer.client.summary.privacy import (
    coarse,
    forward_pass_every_round,
    release_of,
    undeclared_training,
    with_estimates,
    without_counts,
)
from fedbalancer.client.summary.statistics import LossesBySteps, LossStatistics

__all__ = [
    "FractionTracker",
    "Histogram",
    "LossStatistics",
    "LossesBySteps",
    "SecAggHistogram",
    "Silent",
    "coarse",
    "forward_pass_every_round",
    "release_of",
    "system_generator",
    "undeclared_training",
    "with_estimates",
    "without_counts",
]
