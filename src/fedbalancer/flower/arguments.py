"""Arguments that Flower's users know: what each is here, and which are refused because they would have no effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.randomness import stream

ELSEWHERE = {
    "fraction_train": "a method plans with a fixed number of clients a round, clients_per_round",
    "min_train_nodes": "a method plans with a fixed number of clients a round, clients_per_round",
}
"""Arguments of Flower's strategies that are said in another way here."""
FIXED = {
    "weighted_by_key": ("num-examples", "updates weigh by the samples trained, which the server checks"),
    "arrayrecord_key": ("arrays", "clients of fedbalancer look for the model there"),
    "configrecord_key": ("config", "clients of fedbalancer look for the configuration there"),
}
"""Arguments with one value that is true here, and why."""
DEFAULT_CLIENTS = 2


def check_others(given: Mapping[str, Any]) -> None:
    """Refuse what would have no effect, by name."""
    for name, value in given.items():
        if name in ELSEWHERE:
            raise BadSetting(f"{name} = {value!r} would have no effect: {ELSEWHERE[name]}")
        if name not in FIXED:
            raise TypeError(f"Strategy got an unexpected keyword argument {name!r}")
        only, why = FIXED[name]
        if value != only:
            raise BadSetting(f"{name} = {value!r} must be {only!r}: {why}")


def least_clients(min_clients: int | None, min_available_nodes: int | None) -> int:
    """How many clients the first round waits for, by our name for it or by Flower's."""
    said = {number for number in (min_clients, min_available_nodes) if number is not None}
    if len(said) > 1:
        raise BadSetting(f"min_clients = {min_clients} and min_available_nodes = {min_available_nodes} say the same")
    least = said.pop() if said else DEFAULT_CLIENTS
    if least < 1:
        raise BadSetting(f"min_clients = {least} must be at least 1")
    return least


@dataclass(frozen=True)
class Evaluators:
    """Which clients evaluate: a `fraction` of those that are there, and at least so many; none where it is 0."""

    fraction: float = 0.0
    least: int = 0

    @classmethod
    def of(
        cls, federated: bool, fraction: float | None, least: int | None, fruitless_rounds: Iterable[str]
    ) -> Evaluators:  # fmt: skip
        """What the arguments say. `fruitless_rounds` names what else was given for an evaluation on clients."""
        if fraction is not None and not 0 <= fraction <= 1:
            raise BadSetting(f"fraction_evaluate = {fraction} must be from 0 to 1")
        if least is not None and least < 0:
            raise BadSetting(f"min_evaluate_nodes = {least} must be at least 0")
        if federated and fraction == 0:
            raise BadSetting("federated_evaluate=True and fraction_evaluate = 0 contradict each other")
        given = [*fruitless_rounds, *([] if least is None else ["min_evaluate_nodes"])]
        if not federated and fraction is None and given:
            raise BadSetting(f"{given[0]} would have no effect: clients evaluate only with federated_evaluate=True")
        share = (1.0 if federated else 0.0) if fraction is None else float(fraction)
        return cls(share, (least or 0) if share else 0)

    def drawn(self, clients: Sequence[str], seed: int, round: int) -> list[str]:
        """Those that evaluate after a round, in order of id."""
        count = min(max(int(len(clients) * self.fraction), self.least), len(clients))
        rng = stream(seed, "evaluate", round)
        return sorted(clients[place] for place in rng.choice(len(clients), count, replace=False).tolist())
