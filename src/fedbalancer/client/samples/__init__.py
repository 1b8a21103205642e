"""Sample selectors: which samples a client trains on."""

from fedbalancer.client.samples.baselines import EverySample, HighestLoss
from fedbalancer.client.samples.class_floor import ClassFloor
from fedbalancer.client.samples.threshold import OverThreshold, OverThresholdBatch, RandomSamples
from fedbalancer.client.samples.trimmed import Trimmed

__all__ = [
    "ClassFloor",
    "EverySample",
    "HighestLoss",
    "OverThreshold",
    "OverThresholdBatch",
    "RandomSamples",
    "Trimmed",
]
