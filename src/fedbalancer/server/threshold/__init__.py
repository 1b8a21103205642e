"""The loss threshold that clients select their samples by."""

from fedbalancer.server.threshold.interpolated import InterpolatedThreshold, loss_threshold
from fedbalancer.server.threshold.none import NoThreshold
from fedbalancer.server.threshold.tracked import TrackedThreshold

__all__ = ["InterpolatedThreshold", "NoThreshold", "TrackedThreshold", "loss_threshold"]
