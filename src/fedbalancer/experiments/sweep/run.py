"""A sweep from start to end, or on from where it stopped, in a folder of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedbalancer.core.errors import RunFolderError
from fedbalancer.core.files import LOCK, FolderLock, readable, write_json
from fedbalancer.experiments.compare import SHARED_RESULTS, shared_results
from fedbalancer.experiments.sweep.driver import Driver, Listen, trial_processes
from fedbalancer.experiments.sweep.plan import SweepPlan
from fedbalancer.experiments.sweep.results import Sweep, write_results
from fedbalancer.experiments.sweep.study import STORAGE, open_study, with_optuna
from fedbalancer.simulation.executors import Resources
from fedbalancer.store.contents import make_folder, refuse_links

FILE = "sweep.json"


def run_sweep(
    plan: SweepPlan,
    out: Path,
    *,
    jobs: int | None = None,
    prune: bool = True,
    overwrite: bool = False,
    listen: Listen = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Sweep:
    """Run or go on with a sweep in the folder `out`, and write its table and figure there."""
    with_optuna()
    side_by_side, each = Resources(workers=1).divide(max(plan.trials, len(plan.seeds)), jobs)
    make_folder(out)
    refuse_links(out, LOCK, STORAGE, SHARED_RESULTS, "runs", "figures")
    lock = FolderLock(out)
    try:
        _claim(plan, out, overwrite)
        study = open_study(plan, out, prune=prune)
        with shared_results(out) as results, trial_processes(side_by_side, replace(each, results=results)) as pool:
            Driver(plan, out, study, pool, listen, stopped).go()
        return write_results(plan, study, out, stopped())
    finally:
        lock.release()


def _claim(plan: SweepPlan, out: Path, overwrite: bool) -> None:
    """Make the folder this sweep's, unless it is another's."""
    file = out / FILE
    if overwrite and file.is_file():
        for name in ("runs", "figures"):
            shutil.rmtree(out / name, ignore_errors=True)
        for name in (FILE, STORAGE, "trials.parquet", "table.md"):
            (out / name).unlink(missing_ok=True)
    mine = readable(plan.described())
    if file.is_file():
        try:
            there = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RunFolderError(f"{file} is not JSON: {error}") from error
        if there != mine:
            other = [key for key in mine if not isinstance(there, dict) or there.get(key) != mine[key]]
            raise RunFolderError(
                f"{out} holds a sweep with other {', '.join(other)}; give another --out, or --overwrite"
            )
    elif any(path.name != ".lock" for path in out.iterdir()):
        raise RunFolderError(f"{out} holds something else than a sweep; give another --out")
    write_json(file, mine)
