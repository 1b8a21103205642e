"""Aggregators: compute the next global model from the clients' updates."""

from fedbalancer.server.aggregate.mean import QFFL, FedNova, MajorityVote, WeightedMean
from fedbalancer.server.aggregate.optimisers import (
    ExtrapolatedMomentum,
    FedAdagrad,
    FedAdam,
    FedExP,
    FedYogi,
    ServerMomentum,
)
from fedbalancer.server.aggregate.robust import ClippedAround, Krum, Median, TrimmedMean

__all__ = [
    "QFFL",
    "ClippedAround",
    "ExtrapolatedMomentum",
    "FedAdagrad",
    "FedAdam",
    "FedExP",
    "FedNova",
    "FedYogi",
    "Krum",
    "MajorityVote",
    "Median",
    "ServerMomentum",
    "TrimmedMean",
    "WeightedMean",
]
