"""Which clients attack, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import ClientReport, Order
from fedbalancer.simulation.attacks.attack import Attack


class Attackers:
    """The attack of every client that is not honest."""

    def __init__(self, attack_of: Mapping[str, Attack]) -> None:
        self.attack_of = dict(attack_of)

    @classmethod
    def drawn(cls, attacks: Sequence[tuple[Attack, int]], clients: Sequence[str], seed: int) -> Attackers:
        """So many clients for every attack, none of them twice. They depend on the seed and the clients only, and more
        of one attack are the same and others."""
        wanted = sum(count for _, count in attacks)
        if wanted > len(clients):
            raise BadSetting(f"setting attacks: {wanted} attackers are asked for, but there are {len(clients)} clients")
        order = stream(seed, "attackers").permutation(len(clients)).tolist()
        drawn = iter(sorted(clients)[place] for place in order)
        return cls({next(drawn): attack for attack, count in attacks for _ in range(count)})

    def falsified(self, report: ClientReport, order: Order) -> ClientReport:
        """The report as its client sends it."""
        attack = self.attack_of.get(report.client)
        return report if attack is None else attack.falsified(report, order)
