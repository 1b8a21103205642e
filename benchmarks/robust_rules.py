"""Robust rules of the literature in place of `+robust`'s: the table "Other rules" of docs/benchmarks/attacks.md.

    PYTHONPATH=benchmarks python benchmarks/robust_rules.py [--rounds 50] [--seeds 0 1] [--attackers 20]

Each rule changes the updates of a round before canter's momentum; everything else is `canter+robust`.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedbalancer.core.contracts import Aggregator
from fedbalancer.core.types import ClientReport, FloatArray, ServerState, Setup, Weights
from fedbalancer.core.wrapping import Wrapping
from fedbalancer.experiments.executor_cache import ExecutorCache
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.paper.attacks import measure_influence
from fedbalancer.server.aggregate import ExtrapolatedMomentum
from fedbalancer.server.aggregate.mean import sort_by_client

Change = tuple[FloatArray, FloatArray]
"""The changed updates and the factor of each weight."""
SHARE = 0.2
"""Assumed share of attackers."""


def norms_clipped(updates: FloatArray) -> Change:
    """Clip to the median norm."""
    norms = np.linalg.norm(updates, axis=1)
    factors = np.minimum(1, np.median(norms) / np.maximum(norms, 1e-30))
    return updates * factors[:, None], np.ones(len(updates))


def geometric_median(updates: FloatArray) -> Change:
    """RFA: the weights of ten Weiszfeld steps (Pillutla et al., 2022)."""
    shares = np.full(len(updates), 1 / len(updates))
    for _ in range(10):
        distances = np.linalg.norm(updates - shares @ updates, axis=1)
        shares = 1 / np.maximum(distances, 1e-6)
        shares /= shares.sum()
    return updates, shares * len(updates)


def nearest_neighbours(updates: FloatArray) -> Change:
    """NNM: replace each update by the mean of its n - f nearest ones, then RFA (Allouah et al., 2023)."""
    distances = np.linalg.norm(updates[:, None] - updates[None], axis=2)
    keep = len(updates) - int(SHARE * len(updates))
    mixed = np.stack([updates[np.argsort(row, kind="stable")[:keep]].mean(axis=0) for row in distances])
    return geometric_median(mixed)


def buckets(updates: FloatArray) -> Change:
    """Bucketing by two, then RFA (Karimireddy et al., 2022)."""
    order = np.random.default_rng(len(updates)).permutation(len(updates))
    mixed = updates.copy()
    for start in range(0, len(order), 2):
        mixed[order[start : start + 2]] = updates[order[start : start + 2]].mean(axis=0)
    return geometric_median(mixed)


def divide_and_conquer(updates: FloatArray) -> Change:
    """DnC: drop the updates with the largest projections on the top singular vector (Shejwalkar et al., 2021)."""
    centred = updates - updates.mean(axis=0)
    top = np.linalg.svd(centred, full_matrices=False)[2][0]
    dropped = np.argsort((centred @ top) ** 2)[len(updates) - int(1.5 * SHARE * len(updates)) :]
    kept = np.ones(len(updates))
    kept[dropped] = 0.0
    return updates, kept


def similar_share(updates: FloatArray) -> Change:
    """FoolsGold style: similar updates of a round share a weight (Fung et al., 2020)."""
    units = updates / np.maximum(np.linalg.norm(updates, axis=1, keepdims=True), 1e-30)
    return norms_clipped(updates)[0], 1 / np.maximum(((units @ units.T) ** 2).sum(axis=1), 1)


RULES: dict[str, Callable[[FloatArray], Change]] = {
    "clip": norms_clipped,
    "rfa": geometric_median,
    "nnm": nearest_neighbours,
    "bucketing": buckets,
    "dnc": divide_and_conquer,
    "foolsgold": similar_share,
}


@dataclass(frozen=True, eq=False)
class RuleState:
    """State of `Rule`: the wrapped policy's, the last centre, and the momentum of every client."""

    inner: object
    centre: FloatArray = field(default_factory=lambda: np.zeros(0))
    momenta: dict[str, FloatArray] = field(default_factory=dict)


@dataclass(frozen=True)
class Rule(Wrapping, Aggregator):
    """Changes the updates of a round by a rule. `momentum` is client momentum with centred clipping, as published.

    Karimireddy, He and Jaggi, ICML 2021: each client sends the average of its updates, beta = 0.9, and the server clips
    around the last result. Here the server computes the averages.
    """

    inner: Aggregator = field(default_factory=ExtrapolatedMomentum)
    kind: str = "clip"

    def init(self, setup: Setup) -> RuleState:
        return RuleState(self.inner.init(setup))

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, RuleState]:
        own: RuleState = state.aggregate
        ordered = sort_by_client(reports)
        updates = np.stack([report.update.astype(np.float64) for report in ordered])
        momenta, centre = own.momenta, own.centre
        if self.kind == "momentum":
            old = [momenta.get(report.client) for report in ordered]
            updates = np.stack([u if m is None else 0.9 * m + 0.1 * u for u, m in zip(updates, old, strict=True)])
            momenta = momenta | {report.client: each for report, each in zip(ordered, updates, strict=True)}
            centre = centre if len(centre) else np.zeros(updates.shape[1])
            radius = float(np.median(np.linalg.norm(updates - centre, axis=1)))
            for _ in range(3):
                away = updates - centre
                factors = np.minimum(1, radius / np.maximum(np.linalg.norm(away, axis=1), 1e-30))
                centre = centre + (away * factors[:, None]).mean(axis=0)
            changed, factors = centre + away * factors[:, None], np.ones(len(updates))
        else:
            changed, factors = RULES[self.kind](updates)
        weighted = [
            replace(report, update=update.astype(np.float32), weight=max(report.weight * float(factor), 1e-9))
            for report, update, factor in zip(ordered, changed, factors, strict=True)
        ]
        weights, inner = self.inner.aggregate(setup, self.unwrapped(state), weighted)
        return weights, RuleState(inner, centre, momenta)


ATTACKS = ("none", "quiet-flip", "common-direction", "step-replay", "little-is-enough")
METHODS = {"+robust": "canter+robust", "none": "canter+robust[aggregate=ExtrapolatedMomentum]"} | {
    kind: f"canter+robust[aggregate=robust_rules:Rule(kind='{kind}')]" for kind in (*RULES, "momentum")
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--attackers", type=int, default=20)
    parser.add_argument("--rules", nargs="+", choices=list(METHODS), default=list(METHODS))
    asked = parser.parse_args()
    logging.getLogger("fedbalancer").setLevel(logging.ERROR)
    base = RunSpec(task="synthetic", users=100, rounds=asked.rounds)
    task = base.load_task()
    executor = ExecutorCache().executor(base, task)
    print(f"| rule | {' | '.join(ATTACKS)} |\n|:--|{'--:|' * len(ATTACKS)}")
    for name in asked.rules:
        method = METHODS[name]
        cells = []
        for attack in ATTACKS:
            attacks = () if attack == "none" else (f"{attack}:{asked.attackers}",)
            runs = [replace(base, method=method, seed=seed) for seed in asked.seeds]
            accuracies = [measure_influence(spec, task, executor, attacks).accuracy for spec in runs]
            cells.append(f"{np.mean(accuracies):.3f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
