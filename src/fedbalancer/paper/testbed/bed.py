"""Run a whole test bed, from start to report."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl

from fedbalancer.core.errors import BadSetting, MissingData
from fedbalancer.core.files import write_json
from fedbalancer.export.run import export
from fedbalancer.paper.testbed.netns import check
from fedbalancer.paper.testbed.phone_logs import PHONES, Lag, latencies
from fedbalancer.paper.testbed.plan import FILE, BedPlan
from fedbalancer.paper.testbed.running import Listen, RunningBed
from fedbalancer.paper.testbed.twin import Twin
from fedbalancer.reporting import Comparison, write_report
from fedbalancer.reporting.plotting import plot_latencies, write_figure
from fedbalancer.store import RunFolder, check_free, read_status
from fedbalancer.training.open_model import SUFFIXES, open_model
from fedbalancer.training.trainer import TorchTrainer

GONE_S = 20.0
"""Seconds to wait for the lock of a killed process."""


@dataclass(frozen=True, eq=False)
class BedResult:
    """Result of a test bed.

    Args:
        comparison: Scores of all methods.
        folder: Folder of the test bed.
        twins: Error of the simulated twin, by method.
        lags: Lag of this machine, by method.
        stopped: Whether the test bed was interrupted.
    """

    comparison: Comparison
    folder: Path
    twins: dict[str, Twin]
    lags: dict[str, Lag]
    stopped: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the values of `compare --json` and, under "bed", lag and twin by method."""
        bed = {
            name: {"lag": self.lags[name].to_json(), "twin": {**self.twins[name].to_json(), "rounds": None}}
            for name in self.lags
        }
        return {**self.comparison.to_json(), "bed": bed}


def run_bed(
    plan: BedPlan,
    *,
    overwrite: bool = False,
    listen: Listen = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> BedResult:
    """Run all methods of a plan and write the report; all started processes have ended afterwards.

    Args:
        plan: The checked plan.
        overwrite: Whether to replace an existing test bed in the plan's folder.
        listen: Called with the progress of every method.
        stopped: Returns whether the user has interrupted the test bed.

    Returns:
        The scores, and the error of the twin and the lag of every method.

    Raises:
        MissingData: If a package is missing, or a process of the test bed fails.
    """
    _check_packages(plan)
    if plan.netns:
        check()
    if plan.model:
        _check_model(plan)
    _prepare_folder(Path(plan.folder), overwrite)
    if plan.runtime in SUFFIXES and not plan.model:
        plan = replace(plan, model=str(_export_model(plan)))
    with ExitStack() as stack:
        bed = RunningBed(plan, stack, listen, stopped)
        for method in bed.order():
            if not stopped():
                bed.run(method)
    return _write_results(plan, bed, stopped())


def _check_packages(plan: BedPlan) -> None:
    needed = {"flwr": "flower", "torch": "torch"}
    if plan.runtime == "executorch":
        needed["executorch"] = "executorch"
    if plan.runtime == "litert":
        needed |= {"ai_edge_litert": "device"} | ({} if plan.model else {"tensorflow": "export"})
    for package, extra in needed.items():
        if find_spec(package) is None:
            raise MissingData(f"the test bed needs {package}; install it: pip install 'fedbalancer[{extra}]'")


def _check_model(plan: BedPlan) -> None:
    """Refuse a file that contains another model than the task's."""
    actual, expected = open_model(plan.model).layout, TorchTrainer(plan.loaded).layout
    if actual != expected:
        strange = next(str(item) for item in (*expected, *actual) if item not in actual or item not in expected)
        raise BadSetting(
            f"{plan.model} does not contain the model of {plan.task} at scale {plan.scale}: they differ in {strange}"
        )


def _export_model(plan: BedPlan) -> Path:
    """Export the task's model into the folder of the test bed."""
    path = Path(plan.folder) / "bed" / f"model{SUFFIXES[plan.runtime]}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return export(plan.loaded, path, plan.runtime).path


def _write_results(plan: BedPlan, bed: RunningBed, stopped: bool) -> BedResult:
    folder = Path(plan.folder)
    if stopped:
        _mark_stopped(plan)
    comparison = write_report(folder).comparison
    assert comparison is not None  # only a single run has no scores
    tables = [pl.read_parquet(plan.run_folder(method) / PHONES, glob=False) for method in bed.lags]
    if tables:
        title = f"Latency of {plan.clients} emulated phones, {plan.loaded.name}"
        write_figure(plot_latencies(latencies(pl.concat(tables)), title), folder / "figures" / "latency.png")
    result = BedResult(comparison, folder, bed.twins, bed.lags, stopped)
    write_json(folder / "testbed.json", {"speed": plan.speed, **result.to_json()})
    return result


def _mark_stopped(plan: BedPlan) -> None:
    """Mark runs as stopped whose server was killed."""
    for method in plan.methods:
        run = plan.run_folder(method)
        if read_status(run) == "running":
            with RunFolder.open(run, GONE_S) as folder:
                folder.update_manifest(status="stopped", why="interrupted")


def _prepare_folder(folder: Path, overwrite: bool) -> None:
    check_free(folder, overwrite, FILE)
    if (folder / FILE).is_file():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
