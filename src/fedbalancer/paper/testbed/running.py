"""A running test bed: its processes, and its methods one after the other."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import polars as pl

from fedbalancer.core.errors import FedBalancerError, MissingData
from fedbalancer.core.files import write_json
from fedbalancer.core.types import Order
from fedbalancer.experiments.plan import BUDGET_METHOD
from fedbalancer.experiments.progress import JobEvent, Progress
from fedbalancer.flower.federation import Federation, free_port
from fedbalancer.paper.testbed.app import write_app
from fedbalancer.paper.testbed.clock import SERVER, make_pipes
from fedbalancer.paper.testbed.netns import HOST, Networks
from fedbalancer.paper.testbed.phone_logs import Lag, gather, lag_of
from fedbalancer.paper.testbed.plan import FILE, BedPlan
from fedbalancer.paper.testbed.twin import FILE as TWIN
from fedbalancer.paper.testbed.twin import Twin, read_rounds, twin
from fedbalancer.reporting.results import load_run
from fedbalancer.reporting.rule import final_accuracy, is_fedavg, select_evaluations
from fedbalancer.store import ComparisonFile, read_manifest, read_status

LOOK_S, SILENCE_S = 0.5, 600.0
"""Seconds between two checks of a run, and without any progress until the run fails."""

TRIES, EXPIRED = 5, "[/v1/runtime/pull-task-input][ApiError"
"""Attempts to start a server app that Flower has expired, and the log text by which that is recognised."""

Listen = Callable[[JobEvent], None]


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
        self.app = write_app(folder / "bed" / "app")
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
                if not self._expired(method, before):
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

    def _expired(self, method: str, before: int) -> bool:
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
            reached = final_accuracy(select_evaluations(load_run(run).curve, self.budget_s, "paper"), self.budget_s)
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
