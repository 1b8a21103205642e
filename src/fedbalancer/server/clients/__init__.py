"""Who takes part in a round."""

from fedbalancer.server.clients.oort import OverThresholdUtility
from fedbalancer.server.clients.uniform import Uniform

__all__ = ["OverThresholdUtility", "Uniform"]
