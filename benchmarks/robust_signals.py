"""Print what a server sees of attackers and of honest clients: a table of docs/benchmarks/attacks.md.

    python benchmarks/robust_signals.py [--attacks label-flip] [--rounds 60] [--seeds 0 1 2] [--attackers 20]

Each figure is the median over the reports after round ten, with the 10th and 90th percentile.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from fedbalancer.core.types import FloatArray, RoundResult, ServerState
from fedbalancer.data import Task
from fedbalancer.experiments.executor_cache import ExecutorCache
from fedbalancer.experiments.simulation import build
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.server.aggregate.checked import crowd_sizes
from fedbalancer.server.report_check import drop_invalid_reports

SIGNALS = ("loss", "norm / median", "cosine, last step", "response", "crowd", "largest cosine in the round")
FIRST = 10


def signals(spec: RunSpec, task: Task) -> Iterator[tuple[bool, Sequence[float]]]:
    """Yield whether a report is an attacker's, and its signals."""
    executor = ExecutorCache().executor(spec, task)
    simulation = build(spec, task, executor)
    server, engine = simulation.server, simulation.engine
    attackers = set() if engine.attackers is None else set(engine.attackers.attack_of)
    state, before = server.init(executor.initial_weights(spec.seed)), None
    for number in range(1, (spec.rounds or 60) + 1):
        plan = server.plan(state, engine.available(state.clock_s))
        result = engine.run(plan, state.weights, state.clock_s)
        result = drop_invalid_reports(result, state, server.setup, server.cohort_faults(state))
        after = server.observe(state, result)
        if number > FIRST and before is not None:
            rows = of_round(state, before, after, result)
            yield from ((report.client in attackers, row) for report, row in zip(result.reports, rows, strict=True))
        before, state = state, after


def of_round(state: ServerState, before: ServerState, after: ServerState, result: RoundResult) -> FloatArray:
    """The signals of every report of a round."""
    updates = np.stack([report.update.astype(np.float64) for report in result.reports])
    norms = np.linalg.norm(updates, axis=1)
    directions = updates / np.maximum(norms, 1e-30)[:, None]
    step = state.weights.astype(np.float64) - before.weights
    row_of = {client: row for row, client in enumerate(after.aggregate.clients)}
    responses = [after.aggregate.responses[row_of[report.client]][-1] for report in result.reports]
    pairs = directions @ directions.T - 2 * np.eye(len(norms))
    columns = [
        [report.summary.loss_mean for report in result.reports],
        norms / np.median(norms),
        directions @ step / max(float(np.linalg.norm(step)), 1e-30),
        responses,
        crowd_sizes(directions.astype(np.float32), state.aggregate.directions),
        pairs.max(axis=1),
    ]
    return np.array(columns, dtype=np.float64).T


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attacks", nargs="+", default=["label-flip", "step-replay(factor=-1)", "against-median"])
    parser.add_argument("--method", default="canter+robust")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--attackers", type=int, default=20)
    asked = parser.parse_args()
    logging.getLogger("fedbalancer").setLevel(logging.ERROR)
    base = RunSpec(task="synthetic", users=100, rounds=asked.rounds, method=asked.method)
    task = base.load_task()
    print(f"| attack | reports of | {' | '.join(SIGNALS)} |\n|:--|:--|{'--:|' * len(SIGNALS)}")
    for attack in asked.attacks:
        settings = {"attacks": (f"{attack}:{asked.attackers}",)}
        specs = [replace(base, seed=seed, settings=settings) for seed in asked.seeds]
        seen = [each for spec in specs for each in signals(spec, task)]
        for who in (True, False):
            rows = np.array([row for is_attacker, row in seen if is_attacker == who])
            low, middle, high = np.nanquantile(rows, [0.1, 0.5, 0.9], axis=0)
            cells = [f"{m:.2f} ({a:.2f} to {b:.2f})" for a, m, b in zip(low, middle, high, strict=True)]
            print(f"| `{attack}` | {'attackers' if who else 'honest clients'} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
