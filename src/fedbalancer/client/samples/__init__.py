"""Sample selectors: which samples a client trains on."""

from fedbalancer.client.samples.baselines import EverySample, HighestLoss
from fedbalancer.client.samples.threshold import ClassFloor, OverThreshold, OverThresholdBatch, RandomSamples, Trimmed

__all__ = [
    "ClassFloor",
    "EverySample",
    "HighestLoss",
    "OverThreshold",
    "OverThresholdBatch",
    "RandomSamples",
    "Trimmed",
]
