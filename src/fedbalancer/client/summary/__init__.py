"""What a client releases about its losses and its speed."""

from fedbalancer.client.summary.gaussian import LossStatistics

__all__ = ["LossStatistics"]
