"""Attacks by name: `metadata-liar:10`, `update-flip(factor=100):5` or `package.module:Class:3`."""

from __future__ import annotations

from collections.abc import Sequence

from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.methods.slots import load_class, make, read_call
from fedbalancer.simulation.attacks.attack import Attack
from fedbalancer.simulation.attacks.attackers import Attackers
from fedbalancer.simulation.attacks.epochs_liar import EpochsLiar
from fedbalancer.simulation.attacks.label_flip import LabelFlip
from fedbalancer.simulation.attacks.latency_liar import LatencyLiar
from fedbalancer.simulation.attacks.metadata_liar import MetadataLiar
from fedbalancer.simulation.attacks.update_flip import UpdateFlip
from fedbalancer.simulation.attacks.update_scale import UpdateScale
from fedbalancer.simulation.attacks.utility_liar import UtilityLiar

ATTACKS: dict[str, tuple[str, type[Attack]]] = {
    "metadata-liar": ("says that its losses are 10 times what they are (factor, told=all|high|low|sum)", MetadataLiar),
    "utility-liar": ("says that its squared losses are 100 times what they are (factor)", UtilityLiar),
    "latency-liar": ("says that a batch takes 1e9 times as long as it does (factor)", LatencyLiar),
    "epochs-liar": ("claims a hundredth of the epochs that it trained (factor, samples)", EpochsLiar),
    "label-flip": ("trains on labels in the opposite order: n - 1 - k of n classes for k", LabelFlip),
    "update-flip": ("sends its update times -1 (factor: times -factor)", UpdateFlip),
    "update-scale": ("sends its update times 1e30 (factor)", UpdateScale),
}


def parse_attack(text: str) -> tuple[Attack, int]:
    """An attack and how many clients make it.

    >>> parse_attack("update-flip(factor=100):5")
    (UpdateFlip(factor=100), 5)
    """
    place = f"attack {text!r}"
    name, colon, count = text.rpartition(":")
    if not colon or not count.strip().isdecimal() or int(count) < 1:
        raise BadSetting(f"{place} must be an attack and how many clients make it, as in metadata-liar:10")
    path, arguments = read_call(place, name)
    if ":" in path:
        found = load_class(place, path)
    elif path in ATTACKS:
        found = ATTACKS[path][1]
    else:
        raise UnknownName("attack", path, ATTACKS)
    attack = make(place, found, arguments)
    if not isinstance(attack, Attack):
        raise BadSetting(f"{place} is no attack: it needs a method falsified(report, order)")
    return attack, int(count)


def attackers_of(attacks: Sequence[str], clients: Sequence[str], seed: int) -> Attackers | None:
    """The attackers among these clients; None where all are honest."""
    return Attackers.drawn([parse_attack(text) for text in attacks], clients, seed) if attacks else None
