"""The loss threshold that clients select their samples by."""

from fedbalancer.server.threshold.interpolated import InterpolatedThreshold, loss_threshold
from fedbalancer.server.threshold.none import NoThreshold

__all__ = ["InterpolatedThreshold", "NoThreshold", "loss_threshold"]
