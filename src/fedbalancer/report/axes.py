"""What accuracy can be drawn over: the share of the budget, time, rounds, bytes, or the seconds that devices were busy.

Every seed has a budget of its own, so that over the share of it the seeds end together even if their clocks differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl

from fedbalancer.report.series import Band, Curve, band_of, evaluations
from fedbalancer.report.stored import Results, StoredRun
from fedbalancer.report.style import byte_unit, time_unit
from fedbalancer.types import FloatArray, IndexArray


@dataclass(frozen=True, eq=False)
class Axis:
    """Accuracy of every method over one x; `per_unit` is what one of the label's units holds."""

    key: str
    choice: str
    label: str
    per_unit: float
    bands: dict[str, Band | None]


def accuracy_axes(results: Results) -> list[Axis]:
    """All that the runs recorded what is needed for; by share of the budget first, where there is one."""
    found = [
        _axis(results, "share", "share of the time budget", lambda most: (1.0, "")),
        _axis(results, "time", clock_name(results), time_unit),
        _axis(results, "rounds", "rounds", lambda most: (1.0, "")),
        _axis(results, "bytes", "bytes sent, down and up", byte_unit),
        _axis(results, "energy", "energy: device time", time_unit),
    ]
    return [axis for axis in found if any(axis.bands.values())]


def clock_name(results: Results) -> str:
    """What the seconds of these runs are: a simulator's, or those of real or emulated phones."""
    devices = {str(run.manifest.get("device")) for run in results.runs if run.manifest.get("engine") == "flower"}
    if "emulated" in devices:
        return "time on the phones' clock"
    return "time on the server's clock" if devices else "simulated time"


def by_clock(results: Results, text: str) -> str:
    """A text about simulated runs in the words of the clock that these runs have."""
    name = clock_name(results)
    if name == "simulated time":
        return text
    clock = name.removeprefix("time on ")
    return text.replace("the simulated clock", clock).replace("simulated seconds", f"seconds of {clock}")


def _axis(results: Results, key: str, choice: str, unit: Callable[[float], tuple[float, str]]) -> Axis:
    curves = {method: [_curve(results, run, key) for run in results.of(method)] for method in results.methods}
    most = max((each.x[-1] for found in curves.values() for each in found if len(each.x)), default=0.0)
    per_unit, name = unit(float(most))
    bands = {
        method: _with_rest(
            band_of(_scaled(each, per_unit) for each in curves[method]),
            [_scaled(_curve(results, run, key), per_unit) for run in _rest(results, method)],
        )
        for method in results.methods
    }
    return Axis(key, choice, f"{choice} ({name})" if name else choice, per_unit, bands)


def _rest(results: Results, method: str) -> list[StoredRun]:
    """Runs that have begun but cannot be scored beside others of the method that can: still going on, or failed."""
    in_mean = results.of(method)
    mine = [run for run in results.runs if run.curve.method == method and run.curve.evals.height]
    return [run for run in mine if not any(run is other for other in in_mean)]


def _with_rest(band: Band | None, rest: list[Curve]) -> Band | None:
    kept = tuple(each for each in rest if len(each.x) > 1)
    if band is None or not kept:
        return band
    return Band(band.x, band.mean, band.low, band.high, band.seeds + len(kept), (*band.tails, *kept))


def _scaled(each: Curve, per_unit: float) -> Curve:
    return each._replace(x=each.x / per_unit)


def _curve(results: Results, run: StoredRun, key: str) -> Curve:
    """The evaluations of a run over one x; empty where the run does not have it."""
    evals = evaluations(run)
    x = _positions(evals, run, results.budgets_s.get(run.curve.seed), key) if evals.height else None
    if x is None or not np.all(np.isfinite(x)):
        return Curve(run.curve.seed, np.zeros(0), np.zeros(0))
    return Curve(run.curve.seed, x, evals["accuracy"].to_numpy().astype(np.float64))


def _positions(evals: pl.DataFrame, run: StoredRun, budget_s: float | None, key: str) -> FloatArray | None:
    clock_s = evals["clock_s"].to_numpy().astype(np.float64)
    if key == "time":
        return clock_s
    if key == "share":
        return clock_s / budget_s if budget_s else None
    if "round" not in evals.columns:
        return None
    number = evals["round"].to_numpy().astype(np.int64)
    return number.astype(np.float64) if key == "rounds" else _spent(run, key, number)


def _spent(run: StoredRun, key: str, number: IndexArray) -> FloatArray | None:
    """Bytes or device seconds until the end of the rounds of these numbers."""
    column = {"bytes": "sent_bytes", "energy": "device_s"}[key]
    rounds = run.rounds
    if column not in rounds.columns or not rounds.height or rounds[column].null_count():
        return None
    total = np.full(int(rounds["round"].max()) + 1, np.nan)  # type: ignore[arg-type]
    total[0] = 0.0
    total[rounds["round"].to_numpy()] = np.cumsum(rounds[column].to_numpy().astype(np.float64))
    return np.asarray(total[np.minimum(number, len(total) - 1)])
