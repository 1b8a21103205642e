"""What is compared: durations, successes, epochs and control values, each with what was recorded."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
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
from fedbalancer.testing.golden.rounding import ARITHMETIC, half_unit, round_tolerance_s, slowest
from fedbalancer.types import RoundResult, Setup, batches_per_epoch


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
    setups = [recorded_setup(golden, each, recorded_devices(golden, each)) for each in (seed, slowest(seed))]
    checks = [
        _seconds_check("T", mean_completion_s, setups, seed.T),
        _seconds_check("initial deadline", partial(mean_completion_s, forward_pass=True), setups, seed.fb_initial),
    ]
    for name in seed.runs:
        run = run_of(seed, name)
        if isinstance(run, BaselineRun):
            results = replayed_rounds(golden, seed, method_of(name), run)
            tolerance_s = round_tolerance_s(golden, seed, run)
            checks += [_rounds_check(name, run, results, tolerance_s), _starts_check(name, run, results, tolerance_s)]
        elif isinstance(run, FedBalancerRun):
            checks += control_checks(name, run, setups[0])
        else:
            capped = [replace(setup, sample_cap=HighestLoss().cap(setup.ledger.size)) for setup in setups]
            checks.append(_seconds_check(f"{name} T", mean_completion_s, capped, run.deadline))
    return checks


def _seconds_check(name: str, time_s: Callable[[Setup], float], setups: list[Setup], recorded_s: float) -> GoldenCheck:
    """An expected time of the recorded clients, which may differ by as much as that of the slowest ones does."""
    found_s, slowest_s = map(time_s, setups)
    tolerance_s = slowest_s - found_s + half_unit([recorded_s]) + ARITHMETIC
    return GoldenCheck(name, 1, differing("seconds", found_s, recorded_s, tolerance_s))


def _rounds_check(name: str, run: BaselineRun, results: list[RoundResult], tolerance_s: float) -> GoldenCheck:
    """Deadline, duration, successes and everybody's epochs."""
    mismatches: list[str] = []
    tolerance_s += half_unit(recorded.duration for recorded in run.rounds)
    for row, result in enumerate(results):
        recorded, where = run.rounds[row], f"round {row + 1}:"
        deadline_s = math.inf if run.deadline is None else run.deadline
        mismatches += differing(f"{where} deadline", result.plan.order.deadline_s, deadline_s, ARITHMETIC)
        mismatches += differing(f"{where} duration", result.seconds, recorded.duration, tolerance_s)
        mismatches += differing(f"{where} successes", len(result.reports), recorded.ok)
        mismatches += differing(f"{where} logged successes", len(result.reports), run.log_ok[row])
        epochs = _epochs(result, {draw[0]: draw[1] for draw in recorded.draws})
        for draw in recorded.draws:
            mismatches += differing(f"{where} epochs of {draw[0]}", epochs[draw[0]], draw[4], ARITHMETIC)
    return GoldenCheck(f"{name} rounds", len(results), mismatches)


def _starts_check(name: str, run: BaselineRun, results: list[RoundResult], tolerance_s: float) -> GoldenCheck:
    """From one logged start to the next: the selection of clients and the round."""
    mismatches: list[str] = []
    tolerance_s += 2 * half_unit(run.log_start_times)
    logged_s = [after - before for before, after in pairwise(run.log_start_times)][: len(results)]
    for row, seconds in enumerate(logged_s):
        took_s = results[row].window_s + results[row].seconds
        mismatches += differing(f"round {row + 1}: seconds to the next start", took_s, seconds, tolerance_s)
    return GoldenCheck(f"{name} start times", len(logged_s), mismatches)


def _epochs(result: RoundResult, batch_s: dict[str, float]) -> dict[str, float]:
    """Epochs that every client did: none if the deadline cut it off, but all its work if only the quorum was full."""
    epochs = {report.client: report.epochs for report in result.reports}
    for missing in result.missing:
        per_epoch = batches_per_epoch(missing.samples, result.plan.order.batch_size)
        done = missing.timings.train_s / (per_epoch * batch_s[missing.client])
        epochs[missing.client] = done if missing.why == "late" else 0.0
    return epochs
