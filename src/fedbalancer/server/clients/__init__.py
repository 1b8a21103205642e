"""Client selectors: which clients take part in a round."""

from fedbalancer.server.clients.oort import Oort
from fedbalancer.server.clients.over_threshold import OverThresholdUtility
from fedbalancer.server.clients.participation import CappedParticipation, GroupFloor
from fedbalancer.server.clients.simple import ByLoss, FedCS, LeastSelected, PowerOfChoice, Uniform

__all__ = [
    "ByLoss",
    "CappedParticipation",
    "FedCS",
    "GroupFloor",
    "LeastSelected",
    "Oort",
    "OverThresholdUtility",
    "PowerOfChoice",
    "Uniform",
]
