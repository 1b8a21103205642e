"""Replay golden rounds through the project's own server and engine, and compare the results with the logs.

Golden rounds are the logs of the authors' runs. Their recorded draws replace the random ones. Durations, successes,
epochs and control values are compared, each within the precision of the file's decimals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from fedbalancer.client.samples import HighestLoss
from fedbalancer.core.contracts import ClientSelector
from fedbalancer.core.types import IndexArray, Ledger, RoundResult, ServerState, Setup, batches_per_epoch
from fedbalancer.methods.table import method
from fedbalancer.paper.golden.format import (
    ARITHMETIC,
    BaselineRun,
    FedBalancerRun,
    GoldenFile,
    GoldenRound,
    GoldenSeed,
    half_unit,
    make_slowest,
    parse_method,
    parse_run,
    read_golden,
    round_tolerance_s,
)
from fedbalancer.server.deadline import interpolate
from fedbalancer.server.expected import mean_completion_s
from fedbalancer.server.loop import rounds
from fedbalancer.server.pace import PaceState, RatioControl
from fedbalancer.server.server import Server
from fedbalancer.server.threshold import LossRange
from fedbalancer.simulation.devices import AlwaysOn, DeviceDraw, Replay
from fedbalancer.simulation.devices.models import DOWNLOAD_KB_BYTES
from fedbalancer.simulation.engine import SimulatedEngine
from fedbalancer.simulation.executors import InlineExecutor
from fedbalancer.training.timing_only import TimingOnly

UPLOAD_KB_BYTES = 1000
"""The recorded runs count a kilobyte of an upload, also of the expected one, as 1000 bytes."""
DETAILS = 5
"""Maximum number of mismatches to print per check."""


@dataclass(frozen=True)
class GoldenCheck:
    """One comparison with the recorded values.

    Args:
        name: What was compared.
        checked: Number of values or rounds.
        mismatches: One sentence per difference.
    """

    name: str
    checked: int
    mismatches: list[str]


@dataclass(frozen=True)
class GoldenReport:
    """All checks of a file.

    Args:
        checks: The checks.
    """

    checks: list[GoldenCheck]

    @property
    def ok(self) -> bool:
        """Whether something was checked and nothing differs."""
        return any(check.checked for check in self.checks) and not any(check.mismatches for check in self.checks)

    def __str__(self) -> str:
        width = max((len(check.name) for check in self.checks), default=0)
        lines = [f"{'run':{width}}  checked  mismatches"]
        lines += [f"{check.name:{width}}  {check.checked:7}  {len(check.mismatches):10}" for check in self.checks]
        mismatches = sum(len(check.mismatches) for check in self.checks)
        lines.append(f"{'total':{width}}  {sum(check.checked for check in self.checks):7}  {mismatches:10}")
        for check in self.checks:
            lines += [f"{check.name}: {mismatch}" for mismatch in check.mismatches[:DETAILS]]
            if len(check.mismatches) > DETAILS:
                lines.append(f"{check.name}: and {len(check.mismatches) - DETAILS} more")
        return "\n".join(lines)


def list_difference(what: str, value: float, recorded: float, tolerance: float = 0.0) -> list[str]:
    """Return a sentence if the values differ by more than the tolerance, otherwise an empty list.

    Example:
        >>> list_difference("round 3: duration", 190.0, 191.0, 1e-6)
        ['round 3: duration is 190.0, recorded 191.0']
    """
    equal = value == recorded or abs(value - recorded) <= tolerance
    return [] if equal else [f"{what} is {value!r}, recorded {recorded!r}"]


def replay_golden(path: str | Path) -> GoldenReport:
    """Replay every run of every seed of a file.

    Args:
        path: The file of golden rounds.

    Returns:
        The checks of all runs.

    Raises:
        FedBalancerError: If the file cannot be read or a value is missing or wrong.
    """
    golden = read_golden(path)
    checks: list[GoldenCheck] = []
    for name, seed in golden.seeds.items():
        checks += [replace(check, name=f"seed {name} {check.name}") for check in _check_seed(golden, seed)]
    return GoldenReport(checks)


def _check_seed(golden: GoldenFile, seed: GoldenSeed) -> list[GoldenCheck]:
    setups = [make_setup(golden, each, make_devices(golden, each)) for each in (seed, make_slowest(seed))]
    checks = [
        _check_seconds("T", mean_completion_s, setups, seed.T),
        _check_seconds("initial deadline", partial(mean_completion_s, forward_pass=True), setups, seed.fb_initial),
    ]
    for name in seed.runs:
        run = parse_run(seed, name)
        if isinstance(run, BaselineRun):
            results = replay_rounds(golden, seed, parse_method(name), run)
            tolerance_s = round_tolerance_s(golden, seed, run)
            checks += [_check_rounds(name, run, results, tolerance_s), _check_starts(name, run, results, tolerance_s)]
        elif isinstance(run, FedBalancerRun):
            checks += check_control(name, run, setups[0])
        else:
            capped = [replace(setup, sample_cap=HighestLoss().cap(setup.ledger.size)) for setup in setups]
            checks.append(_check_seconds(f"{name} T", mean_completion_s, capped, run.deadline))
    return checks


def _check_seconds(
    name: str, compute_s: Callable[[Setup], float], setups: list[Setup], recorded_s: float
) -> GoldenCheck:
    """Check an expected time of the recorded clients; the time of the slowest ones gives its tolerance."""
    time_s, slowest_s = map(compute_s, setups)
    tolerance_s = slowest_s - time_s + half_unit([recorded_s]) + ARITHMETIC
    return GoldenCheck(name, 1, list_difference("seconds", time_s, recorded_s, tolerance_s))


def _check_rounds(name: str, run: BaselineRun, results: list[RoundResult], tolerance_s: float) -> GoldenCheck:
    """Check deadline, duration, successes and every client's epochs."""
    mismatches: list[str] = []
    tolerance_s += half_unit(recorded.duration for recorded in run.rounds)
    for row, result in enumerate(results):
        recorded, where = run.rounds[row], f"round {row + 1}:"
        deadline_s = math.inf if run.deadline is None else run.deadline
        mismatches += list_difference(f"{where} deadline", result.plan.order.deadline_s, deadline_s, ARITHMETIC)
        mismatches += list_difference(f"{where} duration", result.seconds, recorded.duration, tolerance_s)
        mismatches += list_difference(f"{where} successes", len(result.reports), recorded.ok)
        mismatches += list_difference(f"{where} logged successes", len(result.reports), run.log_ok[row])
        epochs = _count_epochs(result, {draw[0]: draw[1] for draw in recorded.draws})
        for draw in recorded.draws:
            mismatches += list_difference(f"{where} epochs of {draw[0]}", epochs[draw[0]], draw[4], ARITHMETIC)
    return GoldenCheck(f"{name} rounds", len(results), mismatches)


def _check_starts(name: str, run: BaselineRun, results: list[RoundResult], tolerance_s: float) -> GoldenCheck:
    """Check the seconds from one logged start to the next: client selection and round."""
    mismatches: list[str] = []
    tolerance_s += 2 * half_unit(run.log_start_times)
    logged_s = [after - before for before, after in pairwise(run.log_start_times)][: len(results)]
    for row, seconds in enumerate(logged_s):
        took_s = results[row].window_s + results[row].seconds
        mismatches += list_difference(f"round {row + 1}: seconds to the next start", took_s, seconds, tolerance_s)
    return GoldenCheck(f"{name} start times", len(logged_s), mismatches)


def _count_epochs(result: RoundResult, batch_s: dict[str, float]) -> dict[str, float]:
    """Count the epochs of every client: 0 if the deadline stopped it, all its work if only the quorum was full."""
    epochs = {report.client: report.epochs for report in result.reports}
    for missing in result.missing:
        per_epoch = batches_per_epoch(missing.samples, result.plan.order.batch_size)
        done = missing.timings.train_s / (per_epoch * batch_s[missing.client])
        epochs[missing.client] = done if missing.why == "late" else 0.0
    return epochs


@dataclass(frozen=True)
class RecordedClients(ClientSelector):
    """Selects the recorded clients.

    Args:
        cohorts: The clients of every round, from round 1 on.
    """

    cohorts: tuple[tuple[str, ...], ...]

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        return state.ledger.rows(self.cohorts[state.round])


def replay_rounds(golden: GoldenFile, seed: GoldenSeed, name: str, run: BaselineRun) -> list[RoundResult]:
    """Replay the rounds of a run.

    Args:
        golden: The file.
        seed: The seed.
        name: Name of the method.
        run: The recorded run.
    """
    devices = make_devices(golden, seed, run.rounds)
    setup = make_setup(golden, seed, devices)
    cohorts = tuple(tuple(draw[0] for draw in recorded.draws) for recorded in run.rounds)
    replayed = method(name, clients=RecordedClients(cohorts))
    executor = InlineExecutor(TimingOnly({client.subject: client.n for client in seed.clients}))
    engine = SimulatedEngine(replayed.client, setup.ledger, executor, devices, AlwaysOn(), golden.model_bytes)
    server = Server(replayed.server, setup)
    state = server.init(executor.initial_weights(0))
    return [result for _, result in rounds(server, engine, state, lambda state: state.round >= len(cohorts))]


def make_devices(golden: GoldenFile, seed: GoldenSeed, recorded_rounds: tuple[GoldenRound, ...] = ()) -> Replay:
    """Return the clients' devices with the draws of the recorded rounds.

    Args:
        golden: The file.
        seed: The seed.
        recorded_rounds: The rounds.
    """
    draws = {
        (number, client): DeviceDraw(batch_s, download_s, upload_s)
        for number, recorded in enumerate(recorded_rounds, start=1)
        for client, batch_s, download_s, upload_s, _ in recorded.draws
    }
    network_s = {}
    for client in seed.clients:
        down_kb_s, _, up_kb_s, _ = golden.speeds_kB_s[client.net]
        down_s = golden.model_bytes / DOWNLOAD_KB_BYTES / down_kb_s
        network_s[client.subject] = down_s + golden.model_bytes / UPLOAD_KB_BYTES / up_kb_s
    return Replay(draws, {client.subject: client.batch_s_10 for client in seed.clients}, network_s)


def make_setup(golden: GoldenFile, seed: GoldenSeed, devices: Replay) -> Setup:
    """Return the server's setup before the first round.

    Args:
        golden: The file.
        seed: The seed.
        devices: The clients' devices.
    """
    clients = tuple(client.subject for client in seed.clients)
    sampled = min(len(client.batch_s_10) for client in seed.clients)
    ledger = Ledger.start(
        clients,
        np.array([client.n for client in seed.clients]),
        np.array([devices.expected_network_s(client, golden.model_bytes, golden.model_bytes) for client in clients]),
        np.array([devices.sample_batch_s(client, sampled) for client in clients]),
    )
    return Setup(ledger, epochs=golden.E, batch_size=golden.B, clients_per_round=golden.K, seed=0)


def check_control(name: str, run: FedBalancerRun, setup: Setup) -> list[GoldenCheck]:
    """Check FedBalancer's control values: ratios from the logged utilities, threshold and deadline from these ratios.

    The utility of a round is known after it, so the ratios of round r follow from the utilities of earlier rounds.

    Args:
        name: Name of the run.
        run: The recorded control values.
        setup: The server's setup.
    """
    server = Server(method("fedbalancer").server, setup)
    start = server.init(np.zeros(0, dtype=np.float32))
    paces = _replay_paces(run)
    values = {
        "ltr": [pace.loss_threshold_ratio for pace in paces],
        "ddlr": [pace.deadline_ratio for pace in paces],
        "lt": _replay_thresholds(run, paces, server, start),
        "deadline": _replay_deadlines(run, paces, start),
    }
    return [GoldenCheck(f"{name} {what}", len(paces), _compare(what, ours, run)) for what, ours in values.items()]


def _replay_paces(run: FedBalancerRun) -> list[PaceState]:
    """Return the pace of every round."""
    control, pace, paces = RatioControl(), PaceState(), []
    for utility in run.U[: len(run.deadline)]:
        paces.append(pace)
        pace = pace if utility is None else control.step(pace, utility)
    return paces


def _replay_thresholds(run: FedBalancerRun, paces: list[PaceState], server: Server, start: ServerState) -> list[float]:
    """Return the threshold of every round. Without logged bounds it is NaN if it needs them."""
    low, high = dict(run.loss_low), dict(run.loss_high)
    thresholds: list[float] = []
    for number, pace in enumerate(paces, start=1):
        started = any(value > 0 for value in thresholds)
        bounds = LossRange(low.get(number, math.nan), high.get(number, math.nan), reports=1, started=started)
        state = replace(start, pace=pace, threshold=bounds)
        thresholds.append(server.policies.threshold.threshold(server.setup, state))
    return thresholds


def _replay_deadlines(run: FedBalancerRun, paces: list[PaceState], start: ServerState) -> list[float]:
    """Return the deadline of every round; the initial one without logged bounds, before enough clients report."""
    low, high = dict(run.dl), dict(run.dh)
    return [
        interpolate(low[number], high[number], pace.deadline_ratio) if number in low else start.deadline.initial_s
        for number, pace in enumerate(paces, start=1)
    ]


def _compare(what: str, values: list[float], run: FedBalancerRun) -> list[str]:
    """Compare values with the logs. A threshold or deadline lies between two bounds and has at most their error."""
    bounds = {"lt": (run.loss_low, run.loss_high), "deadline": (run.dl, run.dh)}.get(what, ())
    logged = getattr(run, what)
    inputs = max((half_unit(value for _, value in pairs) for pairs in bounds), default=0.0)
    tolerance = inputs + half_unit(logged) + ARITHMETIC
    return [
        text
        for number, (ours, theirs) in enumerate(zip(values, logged, strict=False), start=1)
        for text in list_difference(f"round {number}: {what}", ours, theirs, tolerance)
    ]
