"""Clients that lie or send harmful updates: test equipment for methods, in the simulator only."""

from fedbalancer.attacks.attack import Attack
from fedbalancer.attacks.attackers import Attackers
from fedbalancer.attacks.epochs_liar import EpochsLiar
from fedbalancer.attacks.label_flip import LabelFlip
from fedbalancer.attacks.latency_liar import LatencyLiar
from fedbalancer.attacks.metadata_liar import MetadataLiar
from fedbalancer.attacks.named import ATTACKS, attackers_of, parse_attack
from fedbalancer.attacks.poisoned import DataAttack, poisons, with_poison
from fedbalancer.attacks.update_flip import UpdateFlip
from fedbalancer.attacks.update_scale import UpdateScale
from fedbalancer.attacks.utility_liar import UtilityLiar

__all__ = [
    "ATTACKS",
    "Attack",
    "Attackers",
    "DataAttack",
    "EpochsLiar",
    "LabelFlip",
    "LatencyLiar",
    "MetadataLiar",
    "UpdateFlip",
    "UpdateScale",
    "UtilityLiar",
    "attackers_of",
    "parse_attack",
    "poisons",
    "with_poison",
]
