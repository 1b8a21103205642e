"""A whole test bed: its plan is checked, its processes run the methods one after the other, and a report is written."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl

from fedbalancer.core.errors import BadSetting, FedBalancerError, MissingData
from fedbalancer.core.files import write_json, write_text
from fedbalancer.core.types import Order
from fedbalancer.experiments.plan import BUDGET_METHOD
from fedbalancer.experiments.progress import JobEvent, Listen, Progress
from fedbalancer.export.run import export
from fedbalancer.flower.federation import Federation, free_port
from fedbalancer.paper.testbed.clock import SERVER, make_pipes
from fedbalancer.paper.testbed.netns import HOST, Networks, check
from fedbalancer.paper.testbed.phone_logs import PHONES, Lag, gather, lag_of, latencies
from fedbalancer.paper.testbed.plan import FILE, BedPlan
from fedbalancer.paper.testbed.twin import FILE as TWIN
from fedbalancer.paper.testbed.twin import Twin, read_rounds, twin
from fedbalancer.reporting import Comparison, write_report
from fedbalancer.reporting.plotting import plot_latencies, write_figure
from fedbalancer.reporting.results import load_run
from fedbalancer.reporting.rule import final_level, is_fedavg, select_evaluations
from fedbalancer.store import ComparisonFile, RunFolder, check_free, read_manifest, read_status
from fedbalancer.training.model_file import SUFFIXES, open_model
from fedbalancer.training.trainer import TorchTrainer

LOOK_S, SILENCE_S = 0.5, 600.0
"""Seconds between two checks of a run, and without any progress until the run fails."""

TRIES, EXPIRED = 5, "[/v1/runtime/pull-task-input][ApiError"
"""Attempts to start a server app that Flower has expired, and the log text by which that is recognised."""


class RunningBed:
    """The processes of a test bed, as long as the stack is open.

    Args:
        plan: The plan.
        stack: Ends the processes when it closes.
        listen: Called with the progress of every method.
        stopped: Returns whether the user has interrupted the test bed.
    """

    def __init__(self, plan: BedPlan, stack: ExitStack, listen: Listen, stopped: Callable[[], bool]) -> None:
        self.plan, self.listen, self.stopped = plan, listen, stopped
        self.twins: dict[str, Twin] = {}
        self.lags: dict[str, Lag] = {}
        self.budget_s, self.target = 0.0, 0.0
        folder = Path(plan.folder)
        file = plan.write()
        self._write_comparison()
        self.app = _write_app(folder / "bed" / "app")
        make_pipes(plan.wakeups, (SERVER, *plan.names))
        self.clock = plan.clock()
        self.clock.start()
        if plan.netns:
            stack.enter_context(Networks(_bandwidths(plan)))
        self.federation = stack.enter_context(Federation(folder / "bed", host=HOST if plan.netns else "127.0.0.1"))
        self.federation.superlink()
        ports = ",".join(str(free_port()) for _ in plan.names)
        module, address = "fedbalancer.paper.testbed.phone_processes", self.federation.address
        command = [sys.executable, "-m", module, str(file), address, ports]
        self.federation.start("phones", command)

    def order(self) -> list[str]:
        """Return the methods: first the one that sets the budget, then other FedAvg variants, which set the target."""
        methods = self.plan.methods
        first = BUDGET_METHOD if BUDGET_METHOD in methods else methods[0]
        return sorted(methods, key=lambda method: (method != first, not is_fedavg(method), methods.index(method)))

    def run(self, method: str) -> None:
        """Run one method and evaluate it."""
        config = f'plan="{Path(self.plan.folder) / FILE}" method={json.dumps(method)}'
        is_reference = is_fedavg(method) or not any(map(is_fedavg, self.plan.methods))
        target = 0.0 if is_reference else self.target
        config += f" budget={self.budget_s:.3f} target={target:.6f}"
        self.listen(JobEvent((method, self.plan.seed), "running", Progress(0, 0.0, None, 0.0)))
        stood_s = self.clock.stood_s()
        try:
            for _ in range(TRIES):
                before = len(self.federation.log("superlink"))
                self.federation.run(self.app, "--run-config", config)
                if not self._has_expired(method, before):
                    break
            self._wait(method)
        except FedBalancerError as error:
            if not self.stopped():  # an interrupt reaches `flwr run` too
                self.listen(JobEvent((method, self.plan.seed), "failed", why=str(error)))
                raise
        if self.stopped():
            self.listen(JobEvent((method, self.plan.seed), "stopped"))
            return
        self._evaluate(method, is_reference, self.clock.stood_s() - stood_s)
        self.listen(JobEvent((method, self.plan.seed), "done"))

    def _has_expired(self, method: str, before: int) -> bool:
        """Wait until the server app has started; return whether Flower has expired it, as on a very busy machine."""
        run = self.plan.run_folder(method) / "manifest.json"
        while not (self.stopped() or run.is_file()):
            self._check_alive(method)
            if EXPIRED in self.federation.log("superlink")[before:]:
                return True
            time.sleep(LOOK_S)
        return False

    def _wait(self, method: str) -> None:
        """Wait for the end of a run and report its progress."""
        run, news_s, said = self.plan.run_folder(method), time.monotonic(), ""
        while not self.stopped():
            self._check_alive(method)
            status = read_status(run)
            if status in ("done", "failed"):
                break
            if (progress := self._progress(run)) is not None and repr(progress) != said:
                news_s, said = time.monotonic(), repr(progress)
                self.listen(JobEvent((method, self.plan.seed), "running", progress))
            if time.monotonic() - news_s > SILENCE_S:
                raise MissingData(f"{method}: no progress for {SILENCE_S:.0f} s; see {self.federation.folder}")
            time.sleep(LOOK_S)
        if not self.stopped() and status == "failed":
            raise MissingData(f"{method} failed: {read_manifest(run)['why']}")

    def _check_alive(self, method: str) -> None:
        for name, process in self.federation.processes.items():
            if process.poll() is not None:
                last = self.federation.log(name).strip().splitlines()[-1:]
                raise MissingData(
                    f"{method}: the {name} process ended: {' '.join(last)[:300]}; see {self.federation.folder}"
                )
        if (failure := self.plan.failure(method)).is_file():
            raise MissingData(f"{method} failed: {failure.read_text(encoding='utf-8').strip()}")

    def _progress(self, run: Path) -> Progress | None:
        """Return the progress of a run, from its log."""
        closed = [event for event in _events(run) if event["event"] == "round closed"]
        if not closed:
            return None
        seen = [event["accuracy"] for event in _events(run) if event["event"] == "evaluated"]
        clock_s = sum(float(event["seconds"]) for event in closed)
        rounds = self.plan.settings(self.plan.methods[0]).rounds
        share = clock_s / self.budget_s if self.budget_s else closed[-1]["round"] / rounds
        return Progress(closed[-1]["round"], clock_s, float(seen[-1]) if seen else None, min(share, 1.0))

    def _evaluate(self, method: str, is_reference: bool, stood_s: float) -> None:
        """Compute budget and target for the next methods, and twin and lag of this one."""
        run, settings = self.plan.run_folder(method), self.plan.settings(method)
        if not self.budget_s:
            self.budget_s = float(pl.read_parquet(run / "rounds.parquet", glob=False)["end_s"].max())  # type: ignore[arg-type]
            self._write_comparison()
        if is_reference:
            reached = final_level(select_evaluations(load_run(run).curve, self.budget_s, "paper"), self.budget_s)
            self.target = max(self.target, reached or 0.0)
        phones = gather(self.plan.phone_logs(method), run)
        chosen = self.plan.method(method)
        order = Order(0, 0.0, 0.0, settings.epochs, settings.batch_size, self.plan.seed,
                      epoch_batches=chosen.server.epoch_batches)  # fmt: skip
        self.twins[method] = twin(read_rounds(run, phones, order), chosen.client.work)
        self.lags[method] = lag_of(phones, self.plan.speed, stood_s)
        write_json(run / TWIN, {**self.twins[method].to_json(), "lag": self.lags[method].to_json()})

    def _write_comparison(self) -> None:
        """Write comparison.json for `fedbalancer report`."""
        plan = self.plan
        ComparisonFile(
            methods=tuple(plan.methods),
            seeds=(plan.seed,),
            budgets_s={plan.seed: self.budget_s} if self.budget_s else {},
            task=plan.loaded.name,
            variant=plan.loaded.variant,
            scale=plan.scale,
            rounds=plan.settings(plan.methods[0]).rounds,
            extend=plan.extend,
        ).write(Path(plan.folder))


def _bandwidths(plan: BedPlan) -> list[float]:
    """Return the bandwidths at which the model takes each phone's seconds, at the test bed's speed."""
    size, devices = plan.model_bytes(), plan.devices()
    return [8 * size * plan.speed / (devices.expected_network_s(client, size, size) / 2) for client in plan.names]


def _events(run: Path) -> Iterator[dict[str, Any]]:
    file = run / "log.jsonl"
    if file.is_file():
        yield from (json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1])


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


PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "testbed"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedbalancer"

[tool.flwr.app.components]
serverapp = "bed.server_app:app"
clientapp = "bed.client_app:app"

[tool.flwr.app.config]
plan = ""
method = ""
budget = 0.0
target = 0.0
"""

SERVER_APP = '''\
"""The server of the test bed."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedbalancer.paper.testbed.server import main

app = ServerApp()


@app.main()
def run(grid: Grid, context: Context) -> None:
    main(grid, context)
'''

CLIENT_APP = '''\
"""Not used: the phones' processes keep their app and model loaded."""

from flwr.clientapp import ClientApp

app = ClientApp()
'''


def _write_app(folder: Path) -> Path:
    """Write the app's files into `folder` and return it."""
    package = folder / "bed"
    package.mkdir(parents=True, exist_ok=True)
    write_text(folder / "pyproject.toml", PYPROJECT)
    for name, text in {"__init__": "", "server_app": SERVER_APP, "client_app": CLIENT_APP}.items():
        write_text(package / f"{name}.py", text)
    return folder
