"""Aggregators: compute the next global model from the clients' updates."""

from fedbalancer.server.aggregate.asynchronous import CalibratedMean, DelayAdaptive
from fedbalancer.server.aggregate.checked import CheckedUpdates
from fedbalancer.server.aggregate.corrected import FedDynServer, MIFAServer, ScaffoldServer
from fedbalancer.server.aggregate.mean import QFFL, FedNova, MajorityVote, WeightedMean
from fedbalancer.server.aggregate.optimisers import (
    ExtrapolatedMomentum,
    FedAdagrad,
    FedAdam,
    FedExP,
    FedYogi,
    ServerMomentum,
)
from fedbalancer.server.aggregate.rate import AutoRate
from fedbalancer.server.aggregate.robust import Krum, Median, TrimmedMean

__all__ = [
    "QFFL",
    "AutoRate",
    "CalibratedMean",
    "CheckedUpdates",
    "DelayAdaptive",
    "ExtrapolatedMomentum",
    "FedAdagrad",
    "FedAdam",
    "FedDynServer",
    "FedExP",
    "FedNova",
    "FedYogi",
    "Krum",
    "MIFAServer",
    "MajorityVote",
    "Median",
    "ScaffoldServer",
    "ServerMomentum",
    "TrimmedMean",
    "WeightedMean",
]
