"""The suites of `fedbalancer benchmark`: versioned lists of cells, each a task in a scenario.

A suite never changes once results exist; `tests/experiments/benchmark/test_suite.py` compares its digest. A change is a
new suite with a new name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedbalancer.core.errors import MissingData, UnknownName
from fedbalancer.core.files import data_folder
from fedbalancer.data import Task
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.simulation.devices.fleet_files import fleet_of_table

TRACES = "devices.zip"
"""File of the recorded availability in the data folder (FLASH's traces)."""
FEDAVG = ("fedavg+1t", "fedavg+2t", "fedavg+spc", "fedavg+wfa")
"""The reference of every cell is the best of these, tuned."""
GIFTS = "+batches+averaged[deadline=UsefulWork,aggregate=ExtrapolatedMomentum]"
"""The parts of canter that other methods can use: work in batches, deadline, server step and averaged model."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a suite.

    Args:
        name: Name of the cell.
        task: The task.
        title: Description for the page.
        settings: Settings that differ from the task's.
        users: Number of users. None: the task's.
        devices: The devices, as in `[devices]`. None: the paper's phones.
        traces: File in `devices.zip` with the hours in which phones are available; "" if they always are.
    """

    name: str
    task: str
    title: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    users: int | None = None
    devices: Mapping[str, Any] | None = None
    traces: str = ""

    def why_missing(self) -> str:
        """Return why the data of the cell cannot be loaded; "" if they are on this computer."""
        try:
            self.base(FEDAVG[0]).load_task()
        except MissingData as error:
            return str(error)
        return ""

    def base(self, method: str) -> RunSpec:
        """Return what all runs of the cell have in common.

        Args:
            method: A method.

        Raises:
            MissingData: If the recorded availability is not on this computer.
        """
        # Methods are evaluated on one grid of seconds, so evaluations after rounds are not needed.
        settings: dict[str, Any] = {"eval_every": 1_000_000, **self.settings}
        if self.traces:
            archive = data_folder() / TRACES
            if not archive.is_file():
                raise MissingData(
                    f"cell {self.name!r} needs the recorded availability {TRACES} in {data_folder()}; set "
                    "FEDBALANCER_DATA to the folder with the data, or leave the cell out with --cells"
                )
            settings["availability"] = f"{archive}:{self.traces}"
        devices = None if self.devices is None else fleet_of_table(self.devices)
        return RunSpec(
            task=self.task, method=method, users=self.users, settings=settings, devices=devices,
            target_metric="accuracy",
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A frozen list of cells and the protocol of its runs.

    Args:
        name: Name with version.
        cells: The cells.
        trials: Trials per method, the method's defaults first.
        tuning_seeds: Seeds of the trials.
        seeds: Seeds of the scores. They differ from the tuning seeds.
        extend: Maximum number of budgets that a method may take to reach the target.
        targets: Shares of the reference's final accuracy, the main one first.
    """

    name: str
    cells: tuple[Cell, ...]
    trials: int = 12
    tuning_seeds: tuple[int, ...] = (1000, 1001, 1002)
    seeds: tuple[int, ...] = (2000, 2001, 2002, 2003, 2004)
    extend: float = 2.0
    targets: tuple[float, ...] = (1.0, 0.95, 0.9, 0.8)

    @property
    def digest(self) -> str:
        """SHA-256 of the content."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def cell(self, name: str) -> Cell:
        """Return a cell.

        Args:
            name: Its name.

        Raises:
            UnknownName: If there is no such cell.
        """
        for cell in self.cells:
            if cell.name == name:
                return cell
        raise UnknownName(f"cell of {self.name}", name, [cell.name for cell in self.cells])

    def reduced(self, trials: int | None = None, tuning_seeds: int | None = None, seeds: int | None = None) -> Suite:
        """Return the suite with fewer trials or seeds, which the results then state.

        Args:
            trials: Trials per method. Default: all.
            tuning_seeds: Number of tuning seeds. Default: all.
            seeds: Number of seeds of the scores. Default: all.
        """
        return replace(
            self,
            trials=self.trials if trials is None else trials,
            tuning_seeds=self.tuning_seeds[:tuning_seeds],
            seeds=self.seeds[:seeds],
        )


SUITES: Mapping[str, Suite] = {
    "tta-1": Suite(
        name="tta-1",
        cells=(
            Cell(name="har", task="har", title="activities of 21 users", settings={"rounds": 50}),
            Cell(name="femnist", task="femnist", title="handwriting of 100 writers", settings={"rounds": 60}),
            Cell(
                name="phones-day",
                task="synthetic",
                title="300 users whose phones come and go (recorded, loose rule)",
                users=300,
                settings={"rounds": 300, "latency": "celeba"},
                traces="ready_loose.json",
            ),
            Cell(
                name="large-cohort",
                task="femnist",
                title="300 writers, 100 per round",
                users=300,
                settings={"rounds": 20, "clients_per_round": 100},
            ),
            Cell(
                name="wrong-labels",
                task="har",
                title="har, a fifth of the labels wrong",
                settings={"rounds": 50, "label_noise": 0.2},
            ),
            Cell(
                name="slow-network",
                task="femnist",
                title="femnist, transfers take longer than training",
                settings={"rounds": 60},
                devices={"kind": "synthetic", "count": 200, "bandwidth": {"lognormal": [2.0, 1.0]}, "seed": 0},
            ),
            Cell(name="celeba", task="celeba", title="faces of 20 people", settings={"rounds": 60}),
            Cell(
                name="phones-night",
                task="femnist",
                title="300 writers whose phones come and go (recorded, strict rule)",
                users=300,
                settings={"rounds": 200, "latency": "shakespeare"},
                traces="ready_strict.json",
            ),
            Cell(name="reddit", task="reddit", title="next word of 250 authors", settings={"rounds": 40}),
            Cell(name="shakespeare", task="shakespeare", title="next letter of 100 roles", settings={"rounds": 25}),
            Cell(name="watch", task="watch", title="exercises of 8 people, included data", settings={"rounds": 60}),
        ),
    ),
}
"""The suites by name."""


def find_suite(name: str) -> Suite:
    """Return a suite.

    Args:
        name: Its name.

    Raises:
        UnknownName: If there is no such suite.
    """
    if name not in SUITES:
        raise UnknownName("suite", name, SUITES)
    return SUITES[name]


def hash_data(task: Task) -> str:
    """Return the SHA-256 of a task's data: all clients' samples and labels, and the test data.

    Args:
        task: The loaded task.
    """
    content = hashlib.sha256()
    for name in sorted(task.clients):
        content.update(name.encode())
        for part in (*task.clients[name], *(task.test if name == min(task.clients) else ())):
            array = np.ascontiguousarray(part)
            content.update(f"{array.dtype}{array.shape}".encode())
            content.update(array.tobytes())
    return content.hexdigest()


def hash_code(
    folder: Path, left_out: Sequence[str] = ("cli", "reporting", "paper", "testing", "flower", "export")
) -> str:
    """Return the SHA-256 of the source files on which a simulated run depends.

    Args:
        folder: The folder of the package.
        left_out: Packages that do not affect a run.
    """
    content = hashlib.sha256()
    for path in sorted(each for suffix in ("py", "c", "h") for each in folder.rglob(f"*.{suffix}")):
        name = path.relative_to(folder).as_posix()
        if name.partition("/")[0] not in left_out and not name.startswith("experiments/benchmark"):
            content.update(name.encode())
            content.update(path.read_bytes())
    return content.hexdigest()
