"""Simulated attackers: clients that lie in their reports, send harmful updates, or train on poisoned data.

An attack is named as `metadata-liar:10`, `update-flip(factor=100):5` or `package.module:Class:3`, with the number of
clients that make it. Attackers exist in the simulator only, to test methods.
"""

from fedbalancer.simulation.attacks.attackers import (
    ATTACKS,
    Attackers,
    make_attackers,
    parse_attack,
    poison_task,
    poisons_data,
)
from fedbalancer.simulation.attacks.contract import Attack, AttackView, Collusion, DataAttack, TargetedAttack
from fedbalancer.simulation.attacks.reports import (
    EpochsLiar,
    LatencyLiar,
    LossDrift,
    MetadataLiar,
    OscillatingLatency,
    UtilityLiar,
)
from fedbalancer.simulation.attacks.updates import (
    AgainstMedian,
    Alternating,
    Backdoor,
    CommonDirection,
    Flip,
    InnerProduct,
    LabelFlip,
    LittleIsEnough,
    ModelAttack,
    Silence,
    Sleeper,
    StepReplay,
    TargetedFlip,
    UpdateFlip,
    UpdateScale,
)

__all__ = [
    "ATTACKS",
    "AgainstMedian",
    "Alternating",
    "Attack",
    "AttackView",
    "Attackers",
    "Backdoor",
    "Collusion",
    "CommonDirection",
    "DataAttack",
    "EpochsLiar",
    "Flip",
    "InnerProduct",
    "LabelFlip",
    "LatencyLiar",
    "LittleIsEnough",
    "LossDrift",
    "MetadataLiar",
    "ModelAttack",
    "OscillatingLatency",
    "Silence",
    "Sleeper",
    "StepReplay",
    "TargetedAttack",
    "TargetedFlip",
    "UpdateFlip",
    "UpdateScale",
    "UtilityLiar",
    "make_attackers",
    "parse_attack",
    "poison_task",
    "poisons_data",
]
