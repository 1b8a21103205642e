"""Scores that were not run: curves of any methods, as an item's tables hold them."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from fedbalancer.paper.scores import Group, make_frames
from fedbalancer.reporting import RunCurve, score

BUDGET_S = 400.0


def curve(method: str, seed: int, step_s: float, top: float = 0.8) -> RunCurve:
    """Four evaluations, by rounds and on the grid, up to `top`; the smaller the step, the faster."""
    clock = [step_s * number for number in range(1, 9)]
    accuracy = [top * min(number, 4) / 4 for number in range(1, 9)]
    frame = pl.DataFrame({"round": range(1, 9), "start_s": [0.0, *clock[:-1]], "clock_s": clock, "accuracy": accuracy})
    return RunCurve(method, seed, frame, end_s=BUDGET_S, grid=frame.select("clock_s", "accuracy"))


def frames(groups: Sequence[Group], task: str = "har", seeds: int = 3, rule: str = "fair") -> dict[str, pl.DataFrame]:
    """The tables of an item in which later methods of a group are faster and better."""
    by_group, curves, budgets_s = {}, {}, dict.fromkeys(range(seeds), BUDGET_S)
    for group in groups:
        mine = [
            curve(method, seed, 50.0 / (1 + 0.2 * place) + seed, 0.7 + 0.005 * place + 0.001 * seed)
            for place, method in enumerate(group.methods)
            for seed in range(seeds)
        ]
        curves |= {(each.method, each.seed): each for each in mine}
        by_group[group.name] = score(mine, budgets_s, methods=group.methods, rule=rule, task=task, variant="made")
    return make_frames(by_group, list(curves.values()), budgets_s, {"scale": "small", "clients": 21})
