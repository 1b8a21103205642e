"""What a test bed is to do: everything that its processes need to know, as one file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import BadSetting, RunFolderError, UnknownName
from fedbalancer.core.files import write_json
from fedbalancer.core.interfaces import DeviceModel
from fedbalancer.core.settings import Settings
from fedbalancer.core.task import Task
from fedbalancer.data.tasks import load_task
from fedbalancer.experiments.simulation import resolve_spec
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.methods.table import Method
from fedbalancer.paper.testbed.clock import BedClock
from fedbalancer.paper.testbed.phones import RecordedPhones, find_file, handed_out, read_phones
from fedbalancer.simulation.devices import Network, Phones, resolve_latency
from fedbalancer.training.open_model import SUFFIXES, runtime_of

DEFAULT_SPEED = 20.0
RUNTIMES = ("torch", *SUFFIXES)
FILE = "bed.json"


@dataclass(frozen=True)
class BedPlan:
    """A test bed: `clients` of a task on as many phones, methods one after the other, `speed` phone seconds a second.

    `phones` is the file of the recorded phones, "" for the project's device model. `folder` gets one run folder a
    method, as a comparison has them. In `real_time` the clock of the phones does not wait for this machine. `runtime`
    is what the phones train with, and `model` their file if it is litert or executorch.
    """

    folder: str
    methods: tuple[str, ...]
    clients: int
    task: str = "har"
    scale: str = "paper"
    seed: int = 0
    rounds: int | None = None
    speed: float = DEFAULT_SPEED
    phones: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    extend: float = 1.5
    netns: bool = False
    real_time: bool = False
    runtime: str = "torch"
    model: str = ""

    @classmethod
    def make(cls, folder: Path, phones: Path | None = None, **options: Any) -> BedPlan:
        """A plan that has been checked: every mistake is told before anything starts."""
        found = phones if phones is not None else find_file()
        plan = cls(str(folder.absolute()), phones="" if found is None else str(found.absolute()), **options)
        if not 0.1 <= plan.speed <= 1000:
            raise BadSetting(f"speed = {plan.speed} must be from 0.1 to 1000 phone seconds a second")
        if plan.runtime not in RUNTIMES:
            raise UnknownName("runtime", plan.runtime, RUNTIMES)
        if plan.model and plan.runtime == "torch":
            raise BadSetting(f"model = {plan.model}: phones with torch have no model file; say --runtime litert")
        if plan.model and runtime_of(Path(plan.model)) != plan.runtime:
            raise BadSetting(f"model = {plan.model} is no file for {plan.runtime}, whose files end in "
                             f"{SUFFIXES[plan.runtime]}")  # fmt: skip
        if plan.clients < 1:
            raise BadSetting(f"clients = {plan.clients} must be at least 1")
        if not plan.methods or len(set(plan.methods)) < len(plan.methods):
            raise BadSetting(f"methods must be one or more different ones, not {', '.join(plan.methods) or 'none'}")
        for method in plan.methods:
            if plan.method(method).late.rule() != "lost":
                raise BadSetting(f"method {method} counts late reports, and neither the bed's twin nor its tables know "
                                 "of rounds that overlap; `fedbalancer run` has it, and Flower itself")  # fmt: skip
        plan.devices()
        return plan

    @classmethod
    def read(cls, path: Path) -> BedPlan:
        """The plan in a file."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls(**{**content, "methods": tuple(content["methods"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RunFolderError(f"{path} is not the plan of a test bed: {error}") from error

    def write(self) -> Path:
        """Put the plan into its folder, for the processes of the bed and for the reader."""
        path = Path(self.folder) / FILE
        write_json(path, asdict(self))
        return path

    @cached_property
    def loaded(self) -> Task:
        """The task with as many clients as there are phones."""
        return load_task(self.task, scale=self.scale, users=self.clients)

    @property
    def names(self) -> tuple[str, ...]:
        """The clients, in the order in which they get their phones."""
        return tuple(self.loaded.sizes)

    def settings(self, method: str) -> Settings:
        return resolve_spec(self._spec(method), self.loaded)[0]

    def method(self, name: str) -> Method:
        return resolve_spec(self._spec(name), self.loaded)[1]

    def devices(self) -> DeviceModel:
        """How long every phone takes."""
        if self.phones:
            return RecordedPhones(self.seed, handed_out(self.names, read_phones(Path(self.phones), self.seed)))
        task = self.loaded
        latency = task.latency if isinstance(task.latency, Mapping) else self.settings(self.methods[0]).latency
        return Phones(self.seed, resolve_latency(latency), Network(self.seed, floor=0.1))

    def model_bytes(self) -> int:
        """What travels each way."""
        from fedbalancer.training.trainer import TorchTrainer

        return self.loaded.model_bytes or TorchTrainer(self.loaded).layout.wire_bytes

    def run_folder(self, method: str) -> Path:
        return Path(self.folder) / method / f"seed-{self.seed}"

    def phone_logs(self, method: str) -> Path:
        """Where the phones write down what they do, until the run is over."""
        return Path(self.folder) / "bed" / "phones" / method

    def clock(self) -> BedClock:
        """Phone time. Where the network is real there is nothing to wait for: the bed runs in real time."""
        return BedClock(Path(self.folder) / "bed" / "clock", self.speed, self.in_real_time)

    @property
    def in_real_time(self) -> bool:
        return self.real_time or self.netns

    @property
    def wakeups(self) -> Path:
        """Where the processes of the bed ring each other."""
        return Path(self.folder) / "bed" / "pipes"

    def failure(self, method: str) -> Path:
        """Where a server that fails says why."""
        return Path(self.folder) / "bed" / f"{method}.failed"

    def _spec(self, method: str) -> RunSpec:
        given = {} if self.rounds is None else {"rounds": self.rounds}
        settings = {**self.overrides, **given}
        return RunSpec(
            task=self.task, method=method, seed=self.seed, scale=self.scale, users=self.clients, settings=settings
        )
