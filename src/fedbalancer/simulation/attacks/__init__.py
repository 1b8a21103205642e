"""Clients that lie or send harmful updates: test equipment for methods, in the simulator only."""

from fedbalancer.simulation.attacks.attack import Attack
from fedbalancer.simulation.attacks.attackers import Attackers
from fedbalancer.simulation.attacks.epochs_liar import EpochsLiar
from fedbalancer.simulation.attacks.label_flip import LabelFlip
from fedbalancer.simulation.attacks.latency_liar import LatencyLiar
from fedbalancer.simulation.attacks.metadata_liar import MetadataLiar
from fedbalancer.simulation.attacks.named import ATTACKS, attackers_of, parse_attack
from fedbalancer.simulation.attacks.poisoned import DataAttack, poisons, with_poison
from fedbalancer.simulation.attacks.update_flip import UpdateFlip
from fedbalancer.simulation.attacks.update_scale import UpdateScale
from fedbalancer.simulation.attacks.utility_liar import UtilityLiar

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
