"""New global weights from the clients' updates."""

from fedbalancer.server.aggregate.mean import WeightedMean

__all__ = ["WeightedMean"]
