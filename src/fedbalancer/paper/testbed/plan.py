"""The plan of a test bed: everything that its processes need, as one file."""

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
from fedbalancer.data import Task, load_task
from fedbalancer.experiments.clock import latency_row, latency_scale
from fedbalancer.experiments.simulation import resolve_spec
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.methods.table import Method
from fedbalancer.paper.testbed.clock import BedClock
from fedbalancer.paper.testbed.phones import RecordedPhones, assign_phones, find_file, read_phones
from fedbalancer.simulation.devices import Network, Phones
from fedbalancer.training.model_file import SUFFIXES, runtime_of

DEFAULT_SPEED = 20.0
RUNTIMES = ("torch", *SUFFIXES)
FILE = "bed.json"


@dataclass(frozen=True)
class BedPlan:
    """The plan of a test bed.

    Args:
        folder: Output folder, with one run folder per method as in a comparison.
        methods: Methods, run one after the other.
        clients: Number of clients, one per phone.
        task: Task name.
        scale: Scale of the task.
        seed: Seed of all runs.
        rounds: Rounds of the first method. Default: the task's.
        speed: Phone seconds per second of this machine.
        phones: File of the recorded phones. "": the project's device model.
        overrides: Settings.
        extend: Longest run of a method below the target accuracy, in budgets.
        netns: Whether every phone has a shaped network.
        real_time: Whether the phones' clock never waits for this machine.
        runtime: What the phones train with: torch, litert or executorch.
        model: The phones' model file, for litert and executorch.
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
        """Create a plan and check it.

        Args:
            folder: Output folder.
            phones: File of the recorded phones. Default: the one in the data folder, if any.
            **options: Other fields of the plan.

        Returns:
            The plan.

        Raises:
            BadSetting: If an option is invalid.
        """
        recorded = phones if phones is not None else find_file()
        plan = cls(str(folder.absolute()), phones="" if recorded is None else str(recorded.absolute()), **options)
        if not 0.1 <= plan.speed <= 1000:
            raise BadSetting(f"speed = {plan.speed} must be from 0.1 to 1000 phone seconds per second")
        if plan.runtime not in RUNTIMES:
            raise UnknownName("runtime", plan.runtime, RUNTIMES)
        if plan.model and plan.runtime == "torch":
            raise BadSetting(f"model = {plan.model}: phones with torch use no model file; add --runtime litert")
        if plan.model and runtime_of(Path(plan.model)) != plan.runtime:
            raise BadSetting(f"model = {plan.model} is not a file for {plan.runtime}; such files end in "
                             f"{SUFFIXES[plan.runtime]}")  # fmt: skip
        if plan.clients < 1:
            raise BadSetting(f"clients = {plan.clients} must be at least 1")
        if not plan.methods or len(set(plan.methods)) < len(plan.methods):
            raise BadSetting(f"methods must be one or more distinct names, not {', '.join(plan.methods) or 'none'}")
        for method in plan.methods:
            if plan.method(method).late.rule() != "lost":
                raise BadSetting(f"method {method} accepts late reports, which the test bed does not support; "
                                 "use `fedbalancer run` or Flower")  # fmt: skip
        plan.devices()
        return plan

    @classmethod
    def read(cls, path: Path) -> BedPlan:
        """Read a plan from its file."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls(**{**content, "methods": tuple(content["methods"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RunFolderError(f"{path} is not the plan of a test bed: {error}") from error

    def write(self) -> Path:
        """Write the plan into its folder and return the path."""
        path = Path(self.folder) / FILE
        write_json(path, asdict(self))
        return path

    @cached_property
    def loaded(self) -> Task:
        """The task, with one client per phone."""
        return load_task(self.task, scale=self.scale, users=self.clients)

    @property
    def names(self) -> tuple[str, ...]:
        """The clients, in the order of their phones."""
        return tuple(self.loaded.sizes)

    def settings(self, method: str) -> Settings:
        """Return the resolved settings of a method."""
        return resolve_spec(self._spec(method), self.loaded)[0]

    def method(self, name: str) -> Method:
        """Return a method by name."""
        return resolve_spec(self._spec(name), self.loaded)[1]

    def devices(self) -> DeviceModel:
        """Return the latencies of the phones."""
        if self.phones:
            return RecordedPhones(self.seed, assign_phones(self.names, read_phones(Path(self.phones), self.seed)))
        latency = latency_row(self.loaded, latency_scale(self.loaded, self.settings(self.methods[0])))
        return Phones(self.seed, latency, Network(self.seed, floor=0.1))

    def model_bytes(self) -> int:
        """Return the bytes of the model on the wire."""
        from fedbalancer.training.trainer import TorchTrainer

        return self.loaded.model_bytes or TorchTrainer(self.loaded).layout.wire_bytes

    def run_folder(self, method: str) -> Path:
        """Return the run folder of a method."""
        return Path(self.folder) / method / f"seed-{self.seed}"

    def phone_logs(self, method: str) -> Path:
        """Return the folder of the phones' logs during a run."""
        return Path(self.folder) / "bed" / "phones" / method

    def clock(self) -> BedClock:
        """Return the phones' clock. With a shaped network the test bed runs in real time."""
        return BedClock(Path(self.folder) / "bed" / "clock", self.speed, self.in_real_time)

    @property
    def in_real_time(self) -> bool:
        """Whether the clock does not wait for this machine."""
        return self.real_time or self.netns

    @property
    def wakeups(self) -> Path:
        """Folder of the pipes through which processes wake each other."""
        return Path(self.folder) / "bed" / "pipes"

    def failure(self, method: str) -> Path:
        """Return the file in which a failed server writes the reason."""
        return Path(self.folder) / "bed" / f"{method}.failed"

    def _spec(self, method: str) -> RunSpec:
        rounds = {} if self.rounds is None else {"rounds": self.rounds}
        settings = {**self.overrides, **rounds}
        return RunSpec(
            task=self.task, method=method, seed=self.seed, scale=self.scale, users=self.clients, settings=settings
        )
