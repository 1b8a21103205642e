"""Aggregators: compute the next global model from the clients' updates."""

from fedbalancer.server.aggregate.adaptive import FedAdagrad, FedAdam, FedYogi
from fedbalancer.server.aggregate.clipped_around import ClippedAround
from fedbalancer.server.aggregate.coordinatewise import Median, TrimmedMean
from fedbalancer.server.aggregate.extrapolated_momentum import ExtrapolatedMomentum
from fedbalancer.server.aggregate.fedexp import FedExP
from fedbalancer.server.aggregate.fednova import FedNova
from fedbalancer.server.aggregate.krum import Krum
from fedbalancer.server.aggregate.majority_vote import MajorityVote
from fedbalancer.server.aggregate.mean import WeightedMean
from fedbalancer.server.aggregate.momentum import ServerMomentum
from fedbalancer.server.aggregate.qffl import QFFL

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
