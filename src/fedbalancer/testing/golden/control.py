"""FedBalancer's control values, round by round, from what was logged of their inputs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from fedbalancer.methods import method
from fedbalancer.server.deadline import interpolated
from fedbalancer.server.pace import PaceState, RatioControl
from fedbalancer.server.server import Server
from fedbalancer.server.threshold.interpolated import LossRange
from fedbalancer.testing.golden.format import FedBalancerRun
from fedbalancer.testing.golden.report import GoldenCheck, differing
from fedbalancer.testing.golden.rounding import ARITHMETIC, half_unit
from fedbalancer.types import ServerState, Setup


def control_checks(name: str, run: FedBalancerRun, setup: Setup) -> list[GoldenCheck]:
    """Ratios from the logged utilities, then threshold and deadline from those ratios and the logged bounds.

    A round's utility is known after it, so the ratios of round r follow from the utilities of the rounds before r.
    """
    server = Server(method("fedbalancer").server, setup)
    start = server.init(np.zeros(0, dtype=np.float32))
    paces = _paces(run)
    found = {
        "ltr": [pace.loss_threshold_ratio for pace in paces],
        "ddlr": [pace.deadline_ratio for pace in paces],
        "lt": _thresholds(run, paces, server, start),
        "deadline": _deadlines(run, paces, start),
    }
    return [GoldenCheck(f"{name} {what}", len(paces), _compare(what, ours, run)) for what, ours in found.items()]


def _paces(run: FedBalancerRun) -> list[PaceState]:
    """The pace in force in every round."""
    control, pace, paces = RatioControl(), PaceState(), []
    for utility in run.U[: len(run.deadline)]:
        paces.append(pace)
        pace = pace if utility is None else control.step(pace, utility)
    return paces


def _thresholds(run: FedBalancerRun, paces: list[PaceState], server: Server, start: ServerState) -> list[float]:
    """Where no bounds are logged they are not a number, so that only a threshold that needs none can come out."""
    low, high = dict(run.loss_low), dict(run.loss_high)
    found: list[float] = []
    for number, pace in enumerate(paces, start=1):
        started = any(value > 0 for value in found)
        bounds = LossRange(low.get(number, math.nan), high.get(number, math.nan), reports=1, started=started)
        state = replace(start, pace=pace, threshold=bounds)
        found.append(server.policies.threshold.threshold(server.setup, state))
    return found


def _deadlines(run: FedBalancerRun, paces: list[PaceState], start: ServerState) -> list[float]:
    """The initial deadline where no bounds are logged: not enough clients had been heard of."""
    low, high = dict(run.dl), dict(run.dh)
    return [
        interpolated(low[number], high[number], pace.deadline_ratio) if number in low else start.deadline.initial_s
        for number, pace in enumerate(paces, start=1)
    ]


def _compare(what: str, found: list[float], run: FedBalancerRun) -> list[str]:
    """A threshold or deadline lies between two logged bounds, so it is off by no more than the worse of them is."""
    bounds = {"lt": (run.loss_low, run.loss_high), "deadline": (run.dl, run.dh)}.get(what, ())
    logged = getattr(run, what)
    inputs = max((half_unit(value for _, value in pairs) for pairs in bounds), default=0.0)
    tolerance = inputs + half_unit(logged) + ARITHMETIC
    return [
        text
        for number, (ours, theirs) in enumerate(zip(found, logged, strict=False), start=1)
        for text in differing(f"round {number}: {what}", ours, theirs, tolerance)
    ]
