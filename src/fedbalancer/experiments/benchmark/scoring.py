"""The scored runs of a cell: every method with its defaults and as tuned, on seeds that no trial used.

A run has its budget, FedAvg+1T's simulated time. The target of a seed is the final accuracy of the best tuned FedAvg
variant. A run that has not reached it continues, up to the suite's number of budgets.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fedbalancer
from fedbalancer.core.files import readable, write_json
from fedbalancer.core.processes import DIED
from fedbalancer.experiments.benchmark.suite import Cell, Suite, hash_code, hash_data
from fedbalancer.experiments.jobs import Job, JobPool
from fedbalancer.experiments.plan import ComparisonPlan
from fedbalancer.experiments.progress import JobEvent, Listen
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.experiments.sweep.plan import run_folder
from fedbalancer.reporting import RunCurve
from fedbalancer.reporting.clients import measure_fairness
from fedbalancer.reporting.results import COSTS
from fedbalancer.reporting.rule import CLOCK_SLACK, final_level, select_evaluations
from fedbalancer.store.contents import CHECKPOINT, make_folder, read_manifest

FILES = ("evals.parquet", "rounds.parquet", "population.parquet", "model.safetensors")
"""Files of a run whose bytes are compared."""


class Scoring:
    """The scored runs of one cell.

    Args:
        suite: The suite.
        cell: The cell.
        out: Folder of the cell.
        pool: The processes that execute the runs.
        listen: Called for every event of a run.
        stopped: Returns True if the runs should stop.
    """

    def __init__(
        self, suite: Suite, cell: Cell, out: Path, pool: JobPool, listen: Listen, stopped: Callable[[], bool]
    ) -> None:
        self.suite, self.cell, self.out, self.pool = suite, cell, out, pool
        self.listen, self.stopped = listen, stopped
        self.code = hash_code(Path(fedbalancer.__file__).parent)

    def run(self, methods: Sequence[str], reference: Sequence[str], seeds: Sequence[int]) -> bool:
        """Run the methods that have no record yet, seed by seed.

        Args:
            methods: Full names of the methods, including the reference.
            reference: The candidates of the reference: FedAvg's tuned variants.
            seeds: The seeds.

        Returns:
            Whether all runs have a record.
        """
        names = tuple(dict.fromkeys((*reference, *methods)))
        for seed in seeds:
            self._discard_stale(names, reference, seed)
        missing = [seed for seed in seeds if any(not self._is_final(name, seed) for name in names)]
        if not missing:
            return True
        plan = ComparisonPlan.make(self.cell.base(names[0]), names, missing, self.suite.extend, "fair")
        data = hash_data(plan.task)
        for seed in missing:
            specs = [spec for spec in plan.specs if spec.seed == seed]
            jobs = [Job(spec, self._folder(spec)) for spec in specs if not self._file(*spec.key).is_file()]
            for key, event in self.pool.run(jobs, self.listen, self.stopped).items():
                self._record(plan, data, next(spec for spec in specs if spec.key == key), event)
            if self.stopped() or any(not self._file(name, seed).is_file() for name in reference):
                return False
            target = max(self._final(name, seed) for name in reference)
            self._extend(plan, data, [spec for spec in specs if self._file(*spec.key).is_file()], target)
        return not self.stopped()

    def _discard_stale(self, names: Sequence[str], reference: Sequence[str], seed: int) -> None:
        """Delete the records of runs that ended early, at a lower target than that of the present reference."""
        if any(not self._is_final(name, seed) for name in reference):
            return
        target = max(self._final(name, seed) for name in reference)
        for name in names:
            if not self._is_final(name, seed):
                continue
            row = self._read(name, seed)
            ended_early = row["end_s"] < self.suite.extend * row["budget_s"] * (1 - CLOCK_SLACK)
            if row["status"] == "done" and ended_early and not reaches(row, target):
                shutil.rmtree(run_folder(self.out, name, seed), ignore_errors=True)
                self._file(name, seed).unlink()

    def _extend(self, plan: ComparisonPlan, data: str, specs: Sequence[RunSpec], target: float) -> None:
        """Extend the runs that have not reached the target, and mark all others as final."""
        jobs = []
        for spec in specs:
            row = self._read(*spec.key)
            if row["final_run"]:
                continue
            longer_s = self.suite.extend * plan.budgets_s[spec.seed]
            if self.suite.extend > 1 and row["status"] == "done" and not reaches(row, target):
                changes = {"budget_s": longer_s, "target": target}
                jobs.append(Job(spec, self._folder(spec), changes=changes))
            else:
                self._finish(spec, row)
        for key, event in self.pool.run(jobs, self.listen, self.stopped).items():
            if event.kind in ("done", "failed") and event.why != DIED:
                spec = next(each for each in specs if each.key == key)
                extension = {"budget_s": self.suite.extend * plan.budgets_s[spec.seed], "target": target}
                row = self._read(*key) | {"extension": extension}
                self._finish(spec, row | (self._measured(plan, spec, event.curve) if event.curve is not None else {}))

    def _record(self, plan: ComparisonPlan, data: str, spec: RunSpec, event: JobEvent) -> None:
        """Write the record of a run at the end of its budget."""
        if event.kind not in ("done", "failed") or event.why == DIED:
            return
        row: dict[str, Any] = {
            "suite": self.suite.name, "cell": self.cell.name, "method": spec.method_name, "seed": spec.seed,
            "budget_s": plan.budgets_s[spec.seed], "status": event.kind, "why": event.why, "final_run": False,
            "final": None, "worst_decile": None, "level": [], "at_s": [], "end_s": 0.0, "extension": None,
            "data": data, "code": self.code, "version": fedbalancer.__version__, "variant": plan.task.variant,
        }  # fmt: skip
        if event.curve is not None and event.kind == "done":
            row |= self._measured(plan, spec, event.curve)
            evaluations = select_evaluations(event.curve, row["budget_s"], "fair")
            fairness = measure_fairness(event.curve.population, plan.metric.plain)
            row |= {
                "final": final_level(evaluations, row["budget_s"]),
                "worst_decile": None if fairness is None else fairness.worst_decile,
                "kernels": read_manifest(self._folder(spec)).get("kernels", {}),
            }
        write_record(self.out, row)

    def _measured(self, plan: ComparisonPlan, spec: RunSpec, curve: RunCurve) -> dict[str, Any]:
        """Return the levels that a run holds and what it cost, at the times of the grid."""
        evaluations = select_evaluations(curve, plan.budgets_s[spec.seed], "fair")
        times = [float(at_s) for at_s in evaluations["at_s"]]
        costs = {name: [curve.spent(name, at_s) for at_s in times] for name in COSTS}
        return {
            "at_s": times,
            "level": [None if level is None else float(level) for level in evaluations["level"]],
            "end_s": curve.last_s,
            **costs,
        }

    def _finish(self, spec: RunSpec, row: dict[str, Any]) -> None:
        """Mark a record as final, with the checksums of the run's files, and delete what only a longer run needs."""
        folder = self._folder(spec)
        manifest = read_manifest(folder) if folder.is_dir() else {}
        files = {name: manifest.get("files", {}).get(name) for name in FILES}
        write_record(self.out, row | {"final_run": True, "files": files})
        shutil.rmtree(folder / CHECKPOINT, ignore_errors=True)

    def _final(self, method: str, seed: int) -> float:
        final = self._read(method, seed)["final"]
        return float(final) if final is not None else float("-inf")

    def _read(self, method: str, seed: int) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self._file(method, seed).read_text(encoding="utf-8"))
        return content

    def _is_final(self, method: str, seed: int) -> bool:
        return self._file(method, seed).is_file() and bool(self._read(method, seed)["final_run"])

    def _folder(self, spec: RunSpec) -> Path:
        return run_folder(self.out, spec.method_name, spec.seed)

    def _file(self, method: str, seed: int) -> Path:
        return record_file(self.out, method, seed)


def record_file(folder: Path, method: str, seed: int) -> Path:
    """Return the file of a run's record.

    Args:
        folder: Folder of the cell.
        method: Full name of the method.
        seed: Seed of the run.
    """
    return folder / "scores" / method / f"seed-{seed}.json"


def write_record(folder: Path, row: Mapping[str, Any], *, replace: bool = True) -> None:
    """Write the record of a run.

    Args:
        folder: Folder of the cell.
        row: The record.
        replace: Whether to replace an existing record.
    """
    file = record_file(folder, row["method"], row["seed"])
    if replace or not file.is_file():
        make_folder(file.parent)
        write_json(file, readable(row))


def reaches(row: Mapping[str, Any], target: float) -> bool:
    """Return whether the run of a record holds a target at some time."""
    return any(level is not None and level >= target for level in row["level"])


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Return the final records of a cell.

    Args:
        folder: Folder of the cell.
    """
    rows = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("scores/*/seed-*.json"))]
    return [row for row in rows if row["final_run"]]
