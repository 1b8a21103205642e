"""An audit of all printed epsilons: it plays neighbouring data sets and tries to distinguish them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.experiments.audit_worlds import (
    Case,
    Claim,
    FlowerWorld,
    Play,
    Situation,
    World,
    is_accepted_on_flower,
    neighbours,
)
from fedbalancer.methods.composition import Method
from fedbalancer.methods.table import BASES, check_method_name
from fedbalancer.methods.table import method as method_of
from fedbalancer.privacy.audit import Shown, choosing_rows, show_epsilon

DELTAS = (1e-5, 1e-2, 0.1)
"""A printed epsilon must hold for every delta; a larger one shows smaller errors."""
CENTRAL = "aggregate=fedbalancer.privacy.central:PrivateMean(clip_norm=1,noise_multiplier={noise})"
CENTRAL_ON_FLOWER = CENTRAL.replace(")", ",draws='system')")

MECHANISMS: Mapping[str, str] = {
    "histogram": "summary=histogram(noise_multiplier={noise})",
    "secagg-histogram": "summary=secagg-histogram(noise_multiplier={noise},least=3)",
    "gaussian": "summary=gaussian(noise_factor={deviation},loss_clip=5,utility_samples='all')",
    "gaussian-selected": "summary=gaussian(noise_factor={deviation},loss_clip=5)",
    "fraction-tracker": (
        "threshold=TrackedThreshold,pace=ConstantPace,summary=fraction-tracker(noise_multiplier={noise})"
    ),
    "silent": "summary=Silent",
}
"""Mechanisms of the metadata. `gaussian-selected` has an infinite epsilon, so there is nothing to audit."""
MODEL = "private-mean"
"""The mechanism of the model."""
THOROUGH = ("fedbalancer+batches", "fedbalancer+late")
"""Methods that are audited in all situations by default."""
METHODS = (
    *BASES, "fedbalancer+robust", "fedbalancer+quantised", "canter+signsgd",
    "fedavg+1t+late", "fedavg+1t+groupfloor", "fedavg+1t+robust", "fedavg+1t+averaged", "fedavg+1t+structured",
    "oort+robust", "prox+1t+batches",
)  # fmt: skip

PLAIN = Situation()
SITUATIONS = (
    PLAIN,
    Situation("one sample", samples=1),
    Situation("stopped early", samples=300, batch_s=0.9),
    Situation("late", batch_s=4.0),
    Situation("first forward pass", forward_pass="first"),
    Situation("half of the samples", samples=2400, order={"loss_threshold": 5.0, "deadline_s": 90.0}),
    Situation("on Flower", place="flower"),
)
MODEL_PLAIN = Situation("many rounds", others=9, clients_per_round=6, rounds=4)
MODEL_SITUATIONS = (
    MODEL_PLAIN,
    Situation("alone and absent", clients_per_round=1, absent=True),
    Situation("on Flower", place="flower"),
)
DEEP, BROAD = 1200, 150
"""Plays of each data set: of a mechanism's first figure, and of all others."""
DEEP_NOISE, BROAD_NOISE = 1.0, 2.0
"""Noise multipliers. With few plays only small epsilons can be contradicted, so the noise is larger."""
GAUSSIAN_SENSITIVITY = 26.5


@dataclass(frozen=True)
class AuditRow:
    """The result of the audit of one figure.

    Args:
        mechanism: Name of the mechanism.
        method: Name of the method.
        situation: What happened to the client.
        claim: The figure.
        unit: What it protects.
        releases: Number of reports of the client in a play.
        plays: Number of plays of each data set.
        delta: The delta at which shown and claimed are closest.
        claimed: Printed epsilon.
        shown: Proven lower bound.
        event: The event that proves it.
    """

    mechanism: str
    method: str
    situation: str
    claim: Claim
    unit: str
    releases: int
    plays: int
    delta: float
    claimed: float
    shown: float
    event: str

    @property
    def holds(self) -> bool:
        """Whether nothing contradicts the figure."""
        return self.shown <= self.claimed


def find_cases(mechanisms: Sequence[str] = (), methods: Sequence[str] = ()) -> list[Case]:
    """Return every finite figure: all mechanisms and methods in the plain situation, and some in other situations.

    The first figure of every mechanism has less noise, for an audit with many plays.

    Args:
        mechanisms: Names of mechanisms. Default: all.
        methods: Names of methods, which are then audited in all situations. Default: all.

    Raises:
        UnknownName: If a mechanism or a method does not exist.
    """
    known = (*MECHANISMS, MODEL)
    for name in mechanisms:
        if name not in known:
            raise UnknownName("mechanism", name, known)
    for stem in methods:
        check_method_name(stem)
    cases: list[Case] = []
    for mechanism in (name for name in known if not mechanisms or name in mechanisms):
        deep: dict[Claim, Case] = {}
        broad: list[Case] = []
        for stem in methods or (*THOROUGH, *METHODS):
            situations = SITUATIONS if methods or stem in THOROUGH else (PLAIN,)
            for situation in MODEL_SITUATIONS if mechanism == MODEL else situations:
                for case in make_cases(mechanism, stem, situation, DEEP_NOISE, DEEP):
                    deep.setdefault(case.claim, case)
                broad += make_cases(mechanism, stem, situation)
        cases += [*deep.values(), *broad]
    return cases


def make_cases(
    mechanism: str, stem: str, situation: Situation, noise: float = BROAD_NOISE, plays: int = BROAD
) -> Iterator[Case]:
    """Yield the finite figures of a mechanism and a method: of the model, or of the metadata and of both.

    Args:
        mechanism: Name of the mechanism.
        stem: Name of the method.
        situation: What happens to the client.
        noise: Noise multiplier of two releases; more releases get more noise.
        plays: Number of plays of each data set.
    """
    noise *= math.sqrt(situation.rounds / 2)
    central = CENTRAL_ON_FLOWER if situation.place == "flower" else CENTRAL
    kinds: dict[Claim, str] = {"model": central}
    if mechanism != MODEL:
        kinds = {"metadata": f"forward_pass={situation.forward_pass},{MECHANISMS[mechanism]}"}
        if situation is PLAIN:
            kinds["whole"] = f"{kinds['metadata']},{central}"
    for claim, text in kinds.items():
        played = _compose(stem, text.format(noise=noise, deviation=noise * GAUSSIAN_SENSITIVITY))
        if played is None or (situation.place == "flower" and not is_accepted_on_flower(played)):
            continue
        case = Case(mechanism, stem, claim, situation, played, plays)
        if math.isfinite(case.printed(1, DELTAS[0])):
            yield case


def _compose(stem: str, options: str) -> Method | None:
    """Return a method that adapts its threshold in every round if it can; None if its policies do not fit together."""
    for more in (",w=1", ""):
        try:
            return method_of(f"{stem}[{options}{more}]")
        except (BadSetting, UnknownName):
            continue
    return None


def audit_case(case: Case, plays: int | None = None) -> AuditRow | None:
    """Audit one figure.

    Args:
        case: The figure.
        plays: Number of plays of each data set. Default: those of the case.

    Returns:
        What was shown; None if the client's report arrives in other rounds with every neighbour, or never. When a
        report arrives is not covered by any figure.
    """
    worlds = find_worst_worlds(case)
    if worlds is None:
        return None
    first, second, pattern = worlds
    plays = case.plays if plays is None else plays
    split = choosing_rows(plays)  # these have the same noise in both worlds
    seeds = (range(plays), (*range(split), *range(plays, 2 * plays - split)))
    played = [
        [play for play in map(world.play, each) if play.rounds == pattern]
        for world, each in zip((first, second), seeds, strict=True)
    ]
    count = min(map(len, played))
    if count < 2:
        return None
    one, other = (_as_rows(each[:count]) for each in played)
    releases = max(play.releases for each in played for play in each)
    results: list[tuple[float, float, Shown]] = [
        (delta, case.printed(releases, delta), show_epsilon(one, other, delta)) for delta in DELTAS
    ]
    delta, claimed, shown = max(results, key=lambda each: each[2].epsilon - each[1])
    return AuditRow(
        case.mechanism, case.method, case.situation.name, case.claim, case.unit, releases, count, delta, claimed,
        shown.epsilon, shown.event,
    )  # fmt: skip


def _as_rows(plays: Sequence[Play]) -> Any:
    return np.nan_to_num(np.array([play.numbers for play in plays]), nan=-math.pi, posinf=1e300, neginf=-1e300)


def find_worst_worlds(case: Case) -> tuple[Any, Any, tuple[int, ...]] | None:
    """Return the neighbouring worlds that are furthest apart with the same noise, and when the client reports in them.

    Args:
        case: The figure.

    Returns:
        Two worlds and the rounds in which the report arrives; None if it arrives in other rounds with every neighbour.
    """
    best: tuple[float, Any, Any, tuple[int, ...]] | None = None
    for pair in neighbours(case.unit, case.situation):
        first, second = _worlds(case, *pair)
        one, other = first.play(0), second.play(0)  # the same noise
        if one.rounds != other.rounds or len(one.numbers) != len(other.numbers) or not one.numbers:
            continue
        distance = float(np.linalg.norm(_as_rows([one]) - _as_rows([other])))
        if best is None or distance >= best[0] * (1 - 1e-9):  # of equal ones the most extreme
            best = distance, first, second, one.rounds
    return None if best is None else best[1:]


def _worlds(case: Case, first: Any, second: Any) -> tuple[Any, Any]:
    on_flower = case.situation.place == "flower"
    if on_flower and case.claim == "metadata":
        return FlowerWorld(case, first), FlowerWorld(case, second)
    return World(case, first, False, on_flower), World(case, second, True, on_flower)


def audit_figures(
    mechanisms: Sequence[str] = (),
    methods: Sequence[str] = (),
    plays: int | None = None,
    note: Callable[[AuditRow], None] | None = None,
) -> list[AuditRow]:
    """Audit every finite figure of these mechanisms and methods.

    Args:
        mechanisms: Names of mechanisms. Default: all.
        methods: Names of methods. Default: all.
        plays: Number of plays of each data set. Default: 1,200 for the first figures of a mechanism, 150 for others.
        note: Called with every row.

    Raises:
        UnknownName: If a mechanism or a method does not exist.
        MissingData: If dp-accounting is not installed.
    """
    rows: list[AuditRow] = []
    for case in find_cases(mechanisms, methods):
        row = audit_case(case, plays)
        if row is not None:
            rows.append(row)
            if note is not None:
                note(row)
    return rows


def to_table(rows: Sequence[AuditRow]) -> str:
    """Return a Markdown table with one row per mechanism and figure: where shown comes closest to claimed.

    Args:
        rows: Rows of an audit.
    """
    groups: dict[tuple[str, Claim, str], list[AuditRow]] = {}
    for row in rows:
        groups.setdefault((row.mechanism, row.claim, row.unit), []).append(row)
    lines = [
        "| mechanism | figure | protects one | audited | releases | closest: method, situation | delta | claimed ≤ | "
        "shown ≥ |",
        "|:--|:--|:--|--:|--:|:--|--:|--:|--:|",
    ]
    for (mechanism, claim, unit), group in groups.items():
        worst = max(group, key=lambda row: (row.shown / row.claimed if row.claimed else row.shown, row.claimed))
        releases = sum(2 * row.plays * row.releases for row in group)
        lines.append(
            f"| `{mechanism}` | {claim} | {unit} | {len(group)} | {releases:,} | `{worst.method}`, {worst.situation} | "
            f"{worst.delta:g} | {worst.claimed:.2f} | {worst.shown:.2f} |"
        )
    return "\n".join(lines)
