"""The influence of attackers on the paper's rules and on the robust ones: the table of docs/benchmarks/attacks.md.

    python benchmarks/attacks.py [--rounds 30] [--seeds 0 [1 ...]] [--methods fedbalancer fedbalancer+robust]

100 clients of `synthetic`, ten a round; the ratio control looks every five rounds, so that it moves within thirty.
"""

from __future__ import annotations

import argparse
import logging
from dataclasses import replace

from fedbalancer.experiments.executor_cache import ExecutorCache
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.paper.attacks import Influence, measure_influence

ATTACKS = (
    "none",
    "metadata-liar:1", "metadata-liar:10", "metadata-liar(factor=.1):10", "metadata-liar(factor=1e40,field='high'):10",
    "utility-liar:1", "utility-liar:10",
    "latency-liar:10", "latency-liar(factor=1.5):10", "latency-liar(factor=.01):10",
    "epochs-liar:10", "epochs-liar(factor=1,samples=.05):10", "epochs-liar(factor=5):10",
    "update-flip:1", "update-flip:10", "update-flip(factor=100):10", "update-scale:10",
    "label-flip:10",
)  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--methods", nargs="+", default=["fedbalancer", "fedbalancer+robust"])
    parser.add_argument("--attacks", nargs="*", default=ATTACKS)
    asked = parser.parse_args()
    logging.getLogger("fedbalancer").setLevel(logging.ERROR)
    base = RunSpec(task="synthetic", users=100, rounds=asked.rounds, settings={"w": 5})
    task = base.load_task()
    executor = ExecutorCache().executor(base, task)
    print(
        "| attack | method | threshold error | deadline error | honest done | attacker selected | rejected | accuracy |"
    )
    print("|:--|:--|--:|--:|--:|--:|--:|--:|")
    for attack in asked.attacks:
        for method in asked.methods:
            specs = [replace(base, method=method, seed=seed) for seed in asked.seeds]
            influences = [
                measure_influence(spec, task, executor, () if attack == "none" else (attack,)) for spec in specs
            ]
            print(f"| `{attack}` | `{method}` | {row(influences)} |", flush=True)


def row(influences: list[Influence]) -> str:
    """Return the worst of the seeds, and the mean accuracy."""
    accuracy = sum(each.accuracy for each in influences) / len(influences)
    cells = [
        f"{max(each.threshold for each in influences):.3g}",
        f"{100 * max(each.deadline for each in influences):.1f} %",
        f"{100 * min(each.honest for each in influences):.0f} %",
        f"{100 * max(each.selected for each in influences):.0f} % of rounds",
        f"{sum(each.rejected for each in influences)}, honest {sum(each.wrongly_rejected for each in influences)}",
        f"{accuracy:.3f}",
    ]
    return " | ".join(cells)


if __name__ == "__main__":
    main()
