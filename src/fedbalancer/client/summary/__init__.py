"""What a client tells about its losses and its speed."""

from fedbalancer.client.summary.by_steps import LossesBySteps
from fedbalancer.client.summary.counts import coarse, with_estimates, without_counts
from fedbalancer.client.summary.fraction_tracker import FractionTracker
from fedbalancer.client.summary.gaussian import LossStatistics
from fedbalancer.client.summary.histogram import Histogram
from fedbalancer.client.summary.noise import system_generator
from fedbalancer.client.summary.release import forward_pass_every_round, release_of
from fedbalancer.client.summary.secagg_histogram import SecAggHistogram
from fedbalancer.client.summary.silent import Silent

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
    "with_estimates",
    "without_counts",
]
