"""Client selectors: which clients take part in a round."""

from fedbalancer.server.clients.dependable import Dependable
from fedbalancer.server.clients.oort import Oort
from fedbalancer.server.clients.over_threshold import OverThresholdUtility
from fedbalancer.server.clients.participation import CappedParticipation, DailyBudget, GroupFloor
from fedbalancer.server.clients.simple import (
    ByLoss,
    FedCS,
    LeastSelected,
    Overcommitted,
    Pisces,
    PowerOfChoice,
    Uniform,
)
from fedbalancer.server.clients.tags import Canary, Tagged, TagQuota

__all__ = [
    "ByLoss",
    "Canary",
    "CappedParticipation",
    "DailyBudget",
    "Dependable",
    "FedCS",
    "GroupFloor",
    "LeastSelected",
    "Oort",
    "OverThresholdUtility",
    "Overcommitted",
    "Pisces",
    "PowerOfChoice",
    "TagQuota",
    "Tagged",
    "Uniform",
]
