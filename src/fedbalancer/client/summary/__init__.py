"""What a client tells about its losses and its speed."""

from fedbalancer.client.summary.gaussian import LossStatistics
from fedbalancer.client.summary.silent import Silent

__all__ = ["LossStatistics", "Silent"]
