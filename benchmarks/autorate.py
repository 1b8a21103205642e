"""The rate that `canter+autorate` finds from five starts: docs/images/methods/autorate.png.

python benchmarks/autorate.py
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

import fedbalancer as fb
from fedbalancer.core.types import ServerState, Setup
from fedbalancer.server.aggregate import AutoRate

OUT = Path(__file__).parent.parent / "docs" / "images" / "methods" / "autorate.png"
TASK, TASK_RATE, ROUNDS, SEED = "synthetic", 0.01, 60, 10
STARTS = (0.01, 0.1, 1, 10, 100)


@dataclass(frozen=True)
class NotedRate(AutoRate):
    """`AutoRate` that notes the common rate of every round."""

    noted: list[float] = field(default_factory=list, compare=False)

    def client_rates(self, setup: Setup, state: ServerState, clients: Sequence[str]) -> Mapping[str, float]:
        self.noted.append(setup.rate_in(state.round + 1) * math.exp(state.aggregate.log_factor))
        return super().client_rates(setup, state, clients)


def find_rates(start: float) -> list[float]:
    """Return the common rate of every round of a run whose learning rate is off by `start`."""
    usual = fb.method("canter+autorate")
    policy = NotedRate(usual.aggregate.inner)
    method = fb.method("canter+autorate", aggregate=policy, name="noted")
    settings = {"learning_rate": TASK_RATE * start, "eval_every": 1_000_000}
    fb.run(TASK, method, SEED, users=100, rounds=ROUNDS, settings=settings)
    return policy.noted


def main() -> None:
    figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
    for start in STARTS:
        rates = find_rates(start)
        axes.plot(range(1, len(rates) + 1), rates, label=f"{TASK_RATE * start:g}")
    axes.set(yscale="log", xlabel="round", ylabel="common learning rate", title=f"{TASK}, seed {SEED}")
    axes.legend(title="learning_rate", fontsize="small")
    figure.savefig(OUT, dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    main()
