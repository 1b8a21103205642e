"""Which samples a client trains on."""

from fedbalancer.client.samples.class_floor import ClassFloor
from fedbalancer.client.samples.every import EverySample
from fedbalancer.client.samples.highest_loss import HighestLoss
from fedbalancer.client.samples.random import RandomSamples
from fedbalancer.client.samples.threshold import OverThreshold
from fedbalancer.client.samples.threshold_batch import OverThresholdBatch
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
