"""Client selectors: which clients take part in a round."""

from fedbalancer.server.clients.by_loss import ByLoss
from fedbalancer.server.clients.capped import CappedParticipation
from fedbalancer.server.clients.fedcs import FedCS
from fedbalancer.server.clients.group_floor import GroupFloor
from fedbalancer.server.clients.least_selected import LeastSelected
from fedbalancer.server.clients.oort import Oort
from fedbalancer.server.clients.over_threshold import OverThresholdUtility
from fedbalancer.server.clients.power_of_choice import PowerOfChoice
from fedbalancer.server.clients.uniform import Uniform

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
