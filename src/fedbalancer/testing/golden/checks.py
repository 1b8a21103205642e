"""What is compared: durations, successes, epochs and control values, each with what was recorded."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from fedbalancer.client.samples import HighestLoss
from fedbalancer.server.expected import mean_completion_s
from fedbalancer.testing.golden.control import control_checks
from fedbalancer.testing.golden.format import (
    BaselineRun,
    FedBalancerRun,
    GoldenFile,
    GoldenSeed,
    method_of,
    read_golden,
    run_of,
)
from fedbalancer.testing.golden.replay import recorded_devices, recorded_setup, replayed_rounds
from fedbalancer.testing.golden.report import GoldenCheck, GoldenReport, differing
from fedbalancer.types import RoundResult

TOLERANCE_S = 1e-6
"""Recorded draws have nine digits after the point and latencies six, which moves a time by less than this."""


def replay_golden(path: str | Path) -> GoldenReport:
    """Replay every run of every seed of a file.

    An unreadable or malformed file is a `FedBalancerError` that names what is missing.
    """
    golden = read_golden(path)
    checks: list[GoldenCheck] = []
    for name, seed in golden.seeds.items():
        checks += [replace(check, name=f"seed {name} {check.name}") for check in _seed_checks(golden, seed)]
    return GoldenReport(checks)


def _seed_checks(golden: GoldenFile, seed: GoldenSeed) -> list[GoldenCheck]:
    setup = recorded_setup(golden, seed, recorded_devices(golden, seed))
    checks = [
        _seconds_check("T", mean_completion_s(setup), seed.T),
        _seconds_check("initial deadline", mean_completion_s(setup, forward_pass=True), seed.fb_initial),
    ]
    for name in seed.runs:
        run = run_of(seed, name)
        if isinstance(run, BaselineRun):
            results = replayed_rounds(golden, seed, method_of(name), run)
            checks += [_rounds_check(name, run, results), _starts_check(name, run, results)]
        elif isinstance(run, FedBalancerRun):
            checks += control_checks(name, run, setup)
        else:
            capped = replace(setup, sample_cap=HighestLoss().cap(setup.ledger.size))
            checks.append(_seconds_check(f"{name} T", mean_completion_s(capped), run.deadline))
    return checks


def _seconds_check(name: str, found_s: float, recorded_s: float) -> GoldenCheck:
    return GoldenCheck(name, 1, differing("seconds", found_s, recorded_s, TOLERANCE_S))


def _rounds_check(name: str, run: BaselineRun, results: list[RoundResult]) -> GoldenCheck:
    """Deadline, duration, successes and everybody's epochs."""
    mismatches: list[str] = []
    for row, result in enumerate(results):
        recorded, where = run.rounds[row], f"round {row + 1}:"
        deadline_s = math.inf if run.deadline is None else run.deadline
        mismatches += differing(f"{where} deadline", result.plan.order.deadline_s, deadline_s, TOLERANCE_S)
        mismatches += differing(f"{where} duration", result.seconds, recorded.duration, TOLERANCE_S)
        mismatches += differing(f"{where} successes", len(result.reports), recorded.ok)
        mismatches += differing(f"{where} logged successes", len(result.reports), run.log_ok[row])
        epochs = _epochs(result, {draw[0]: draw[1] for draw in recorded.draws})
        for draw in recorded.draws:
            mismatches += differing(f"{where} epochs of {draw[0]}", epochs[draw[0]], draw[4], TOLERANCE_S)
    return GoldenCheck(f"{name} rounds", len(results), mismatches)


def _starts_check(name: str, run: BaselineRun, results: list[RoundResult]) -> GoldenCheck:
    """From one logged start to the next: the selection of clients and the round."""
    mismatches: list[str] = []
    logged_s = [after - before for before, after in pairwise(run.log_start_times)][: len(results)]
    for row, seconds in enumerate(logged_s):
        took_s = results[row].window_s + results[row].seconds
        mismatches += differing(f"round {row + 1}: seconds to the next start", took_s, seconds, TOLERANCE_S)
    return GoldenCheck(f"{name} start times", len(logged_s), mismatches)


def _epochs(result: RoundResult, batch_s: dict[str, float]) -> dict[str, float]:
    """Epochs that every client did: none if the deadline cut it off, but all its work if only the quorum was full."""
    epochs = {report.client: report.epochs for report in result.reports}
    for missing in result.missing:
        per_epoch = max(-(-missing.samples // result.plan.order.batch_size), 1)
        done = missing.timings.train_s / (per_epoch * batch_s[missing.client])
        epochs[missing.client] = done if missing.why == "late" else 0.0
    return epochs
