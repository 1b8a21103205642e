"""Threshold policies: the loss threshold by which clients select their samples."""

from fedbalancer.server.threshold.interpolated import InterpolatedThreshold, loss_threshold
from fedbalancer.server.threshold.none import NoThreshold
from fedbalancer.server.threshold.recent import RecentThreshold
from fedbalancer.server.threshold.tracked import TrackedThreshold

__all__ = ["InterpolatedThreshold", "NoThreshold", "RecentThreshold", "TrackedThreshold", "loss_threshold"]
