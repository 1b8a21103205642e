"""New global weights from the clients' updates."""

from fedbalancer.server.aggregate.fedadagrad import FedAdagrad
from fedbalancer.server.aggregate.fedadam import FedAdam
from fedbalancer.server.aggregate.fedyogi import FedYogi
from fedbalancer.server.aggregate.krum import Krum
from fedbalancer.server.aggregate.majority_vote import MajorityVote
from fedbalancer.server.aggregate.mean import WeightedMean
from fedbalancer.server.aggregate.median import Median
from fedbalancer.server.aggregate.momentum import ServerMomentum
from fedbalancer.server.aggregate.qffl import QFFL
from fedbalancer.server.aggregate.trimmed_mean import TrimmedMean

__all__ = [
    "QFFL",
    "FedAdagrad",
    "FedAdam",
    "FedYogi",
    "Krum",
    "MajorityVote",
    "Median",
    "ServerMomentum",
    "TrimmedMean",
    "WeightedMean",
]
