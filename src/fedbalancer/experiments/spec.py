"""The specification of a run: everything that determines its result, saved in the run folder."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypedDict

from fedbalancer.core.contracts import SLOTS
from fedbalancer.core.errors import BadSetting, RunFolderError, UnknownName
from fedbalancer.core.metrics import Metric, choose_metric
from fedbalancer.core.schedules import describe_rate
from fedbalancer.core.settings import RUN_KEYS, Settings, as_text, is_policy_key, merge, resolve
from fedbalancer.data import Task, load_task
from fedbalancer.data.clients import add_label_noise
from fedbalancer.experiments.clock import latency_scale
from fedbalancer.methods.fields import describe_settings
from fedbalancer.methods.names import canonical_name, check_name, parse_method_name, with_slots
from fedbalancer.methods.table import Method, check_method_name
from fedbalancer.simulation.devices.fleet import Fleet
from fedbalancer.simulation.devices.fleet_files import fleet_of_table, resolve_devices
from fedbalancer.store import new_manifest
from fedbalancer.training.fast.kernels import describe_environment
from fedbalancer.training.optimizers import why_plain
from fedbalancer.training.trainer import BACKENDS

DEVICE_OBJECT = "object"
"""Kind of devices that a manifest cannot describe."""
DEVICE = re.compile(r"cpu|mps|cuda(:\d+)?")


class ExecutionOptions(TypedDict, total=False):
    """Keyword options of `run`, `compare` and `resume` that say who does the work. Results do not depend on them.

    Args:
        workers: Number of worker processes that train clients. None: the run starts in this process and moves to a pool
            of all cores if it takes long. Default: 1; for `compare`, the cores are shared among the runs.
        executor: inline (this process), pool (processes) or ray (actors). Default: by `workers`.
        address: Address of a Ray cluster, for the executor ray.
        gpus: Share of a GPU per worker, for the device cuda: with 0.25, four workers share one GPU.
        track: Experiment trackers, by the names that `--track` accepts, or `fedbalancer.experiments.tracking.Sink`
            objects. A comparison runs in several processes and needs names.
    """

    workers: int | None
    executor: str | None
    address: str | None
    gpus: float | None
    track: Sequence[Any]


class RunOptions(ExecutionOptions, total=False):
    """Keyword options that `fedbalancer.run` and `fedbalancer.compare` share, besides `ExecutionOptions`.

    Args:
        scale: Size of a named task: small (default), or paper as published.
        users: Number of users of a named task, where it allows a choice.
        variant: Data set of a named task, where it has several.
        settings: Settings of the task or the method, as `--set` on the command line: a mapping from the names of
            `fedbalancer list settings` to values.
        rounds: Number of rounds. Default: the task's. In a comparison these are FedAvg+1T's rounds, whose simulated
            time is the budget of all methods.
        target_metric: Metric that targets and scores use: one of the task's metrics, or loss. Default: the task's
            first metric.
        devices: Simulated devices: a `Fleet`, a CSV or Parquet file of a fleet, "paper", a table as in `[devices]`, an
            object with the methods of `DeviceModel`, or a function of (clients, seed) that returns one. Such an object
            may also have the methods of `Availability`. Default: the task's, else the paper's phones.
        backend: Training backend: fast (default), or plain. It affects the last digits of the results.
        device: Where torch computes: cpu (default), cuda or mps. It affects the last digits of the results.

    >>> import fedbalancer as fb
    >>> few = {"w": 1, "clients_per_round": 5}
    >>> result = fb.run("synthetic", "fedbalancer", rounds=2, timing_only=True, settings=few)
    >>> result.rounds["selected"].to_list()
    [5, 5]
    """

    scale: str
    users: int | None
    variant: str | None
    settings: Mapping[str, Any] | None
    rounds: int | None
    target_metric: str | None
    devices: Any
    backend: str
    device: str


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the keyword options of a run.

    Args:
        options: The options, by name.

    Returns:
        The fields of `RunSpec`, and those of `Resources`.

    Raises:
        BadSetting: If a keyword is a setting, which belongs in `settings`.
        UnknownName: If a keyword is not an option.
    """
    for name, value in options.items():
        if (name in RUN_KEYS or is_policy_key(name)) and name not in RunOptions.__annotations__:
            raise BadSetting(f"{name} is a setting, not an option; pass settings={{{name!r}: {value!r}}}")
        if name not in RunOptions.__annotations__:
            raise UnknownName("option", name, tuple(RunOptions.__annotations__))
    execution = {name: value for name, value in options.items() if name in ExecutionOptions.__annotations__}
    return {name: value for name, value in options.items() if name not in execution}, execution


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run.

    The run stops after `rounds` rounds or, if `budget_s` is set, when the simulated clock passes it. With a `target`,
    it also stops when the target is reached: by one evaluation or, if `eval_every_s` is set, by the mean of three
    consecutive evaluations on that grid.

    Args:
        task: A task's name, a TOML file, or a `Task`.
        method: A method's name, or a `Method`.
        seed: Determines everything random.
        scale: Size of a named task: small, or paper as published.
        users: Number of users of a named task, where it allows a choice.
        variant: Data set of a named task, where it has several.
        settings: Settings of the task or the method that differ from the defaults.
        rounds: Number of rounds. Default: the task's.
        budget_s: Simulated seconds to run for, instead of a number of rounds.
        target: Value of the metric at which the run stops.
        target_metric: Metric of the target and of scores. Default: the task's first metric.
        timing_only: Simulate only the clock; train nothing.
        devices: Simulated devices, see `RunOptions`. Default: the task's, else the paper's phones.
        backend: Training backend: fast or plain.
        device: Where torch computes: cpu, cuda, cuda:NUMBER or mps.
    """

    task: str | Task
    method: str | Method = "fedbalancer"
    seed: int = 0
    scale: str = "small"
    users: int | None = None
    variant: str | None = None
    settings: Mapping[str, Any] | None = field(default_factory=dict)
    rounds: int | None = None
    budget_s: float | None = None
    target: float | None = None
    target_metric: str | None = None
    timing_only: bool = False
    devices: Any = None
    backend: str = "fast"
    device: str = "cpu"

    def __post_init__(self) -> None:
        if isinstance(self.task, str) and self.task.endswith(".toml"):  # `resume` must find it from any folder
            object.__setattr__(self, "task", str(Path(self.task).absolute()))
        object.__setattr__(self, "settings", None if self.settings is None else as_text(self.settings))
        if isinstance(self.method, str):
            object.__setattr__(self, "method", canonical_name(self.method))
        elif self.method is not None:
            check_name(self.method.name)
        object.__setattr__(self, "devices", resolve_devices(self.devices))
        for name in ("seed", "rounds", "users"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, Integral)):
                raise BadSetting(f"{name} = {value!r} must be an integer")
        if not 0 <= self.seed < 2**63:
            raise BadSetting(f"seed = {self.seed} must be an integer from 0 to 2**63 - 1")
        if self.rounds is not None and self.rounds < 1:
            raise BadSetting(f"rounds = {self.rounds} must be at least 1")
        if self.budget_s is not None and not 0 < self.budget_s < float("inf"):
            raise BadSetting(f"budget = {self.budget_s} must be a finite number of seconds > 0")
        if self.target is not None:
            _check_target(self.target, self.timing_only)
        if self.users is not None and self.users < 1:
            raise BadSetting(f"users = {self.users} must be at least 1")
        if self.backend not in BACKENDS:
            raise UnknownName("backend", self.backend, BACKENDS)
        if not DEVICE.fullmatch(self.device):
            raise BadSetting(f"device = {self.device!r} must be cpu, cuda, cuda:NUMBER or mps")

    @property
    def method_name(self) -> str:
        """The canonical name of the method."""
        return self.method if isinstance(self.method, str) else self.method.name

    @property
    def key(self) -> tuple[str, int]:
        """Method name and seed, which identify a run in a comparison."""
        return self.method_name, self.seed

    @property
    def overrides(self) -> dict[str, Any]:
        """The settings as a dictionary."""
        return dict(self.settings or {})

    @property
    def own_settings(self) -> Mapping[str, Any]:
        """The settings of the run in the brackets of the method's name. They override all others."""
        return parse_method_name(self.method).settings if isinstance(self.method, str) else self.method.settings

    def metric(self, task: Task) -> Metric:
        """Return the metric that the target and scores of the run use.

        Raises:
            UnknownName: If the task does not have the metric `target_metric`.
        """
        return choose_metric(task.metrics, self.target_metric)

    @property
    def has_device_object(self) -> bool:
        """Whether the devices are an object that other processes cannot create again."""
        return self.devices is not None and not isinstance(self.devices, Fleet)

    def with_devices_of(self, task: Task) -> RunSpec:
        """Return the spec with the task's devices, if the run names none."""
        return self if self.devices is not None or task.devices is None else replace(self, devices=task.devices)

    def load_task(self) -> Task:
        """Load the task."""
        task = self.task
        if not isinstance(task, Task):
            task = load_task(task, scale=self.scale, users=self.users, variant=self.variant)
        share = resolve({key: value for key, value in self.overrides.items() if key == "label_noise"}).label_noise
        return add_label_noise(task, share)

    def to_json(self) -> dict[str, Any]:
        """Return all fields as plain values. A `Task` or `Method` object becomes null."""
        content = {each.name: getattr(self, each.name) for each in fields(self)}
        if isinstance(self.devices, Fleet):
            content["devices"] = self.devices.to_json()
        elif self.devices is not None:
            content["devices"] = {"kind": DEVICE_OBJECT, "name": type(self.devices).__name__}
        return {**content, **{name: _name_or_none(content[name]) for name in ("task", "method")}}

    @classmethod
    def from_json(
        cls, content: Mapping[str, Any], task: Task | None = None, method: Method | None = None, devices: Any = None
    ) -> RunSpec:
        """Create a spec from the values of `to_json`.

        Args:
            content: The values.
            task: The `Task` object, if the run was started with one.
            method: The `Method` object, if the run was started with one.
            devices: The object of a device model, if the run was started with one.

        Raises:
            RunFolderError: If the values do not describe a run, or an object is missing.
            BadData: If the file of the fleet has changed.
        """
        unknown = content.keys() - {each.name for each in fields(cls)}
        if unknown:
            raise RunFolderError(f"this run has options that this version does not know: {', '.join(sorted(unknown))}")
        values = {**content, "task": content.get("task") or task, "method": content.get("method") or method}
        if values["task"] is None or values["method"] is None:
            raise RunFolderError(
                "this was started from Python with a Task or Method object, so it can continue only from Python: a run "
                "with fedbalancer.resume(folder, task=..., method=...), a comparison with "
                "fedbalancer.compare(task, add=folder)"
            )
        _check_absolute(values["task"])
        values["devices"] = _recorded_devices(content.get("devices"), devices)
        try:
            dict(values.get("settings") or {})
            return cls(**values)
        except (AttributeError, TypeError, ValueError, BadSetting) as error:
            raise RunFolderError(f"this run has invalid options: {error}") from error

    def manifest(self, task: Task, settings: Settings, method: Method) -> dict[str, Any]:
        """Return the content of manifest.json before the run starts.

        Args:
            task: The loaded task.
            settings: The resolved settings.
            method: The method, whose policy fields are added to the settings.
        """
        description = {"name": task.name, "variant": task.variant, "scale": self.scale, "users": self.users}
        return new_manifest(
            task={**description, "source": _name_or_none(self.task)},
            metric=self.metric(task).to_json(),
            settings=describe_settings(settings, method),
            clock=latency_scale(task, settings).to_json(),
            kernels=self.kernels(),
            training=self.training(settings, task, method),
            **self.manifest_fields(),
        )

    def kernels(self) -> dict[str, str]:
        """Return the processor and the implementation of every kernel, as far as known."""
        return describe_environment(self.backend if self.device == "cpu" and not self.timing_only else "none")

    def training(self, settings: Settings, task: Task | None = None, method: Method | None = None) -> dict[str, Any]:
        """Return how clients are trained: the backend that takes the steps, why, and the options.

        Args:
            settings: The resolved settings.
            task: The loaded task.
            method: The method.
        """
        options = settings.training()
        why = why_plain(options, self.backend, self.device, task) or ("" if method is None else _why_policies(method))
        why = "nothing is trained" if self.timing_only else why
        path = "none" if self.timing_only else "plain" if why else "fast"
        rate = {"learning_rate": describe_rate(settings.learning_rate), "schedule": settings.schedule}
        return {"path": path, "why": why, **rate, **asdict(options)}

    def manifest_fields(self) -> dict[str, Any]:
        """Return the fields of manifest.json that come from the spec: the spec, and copies of its main values."""
        return {
            "method": self.method_name,
            "seed": self.seed,
            "budget_s": self.budget_s,
            "backend": self.backend,
            "device": self.device,
            "spec": self.to_json(),
        }


def _why_policies(method: Method) -> str:
    """Return which policies of a method need the plain backend; "" if none does."""
    policies = [] if method.train.is_plain else [f"train {type(method.train).__name__}"]
    policies += [] if method.part.is_whole else [f"part {type(method.part).__name__}"]
    return f"the method changes local training ({', '.join(policies)})" if policies else ""


def from_manifest(
    manifest: Mapping[str, Any], task: Task | None = None, method: Method | None = None, devices: Any = None
) -> RunSpec:
    """Create the spec of the run that a manifest describes.

    Args:
        manifest: The content of manifest.json.
        task: The `Task` object, if the run was started with one.
        method: The `Method` object, if the run was started with one.
        devices: The object of a device model, if the run was started with one.

    Raises:
        RunFolderError: If the manifest does not describe a run, or an object is missing.
    """
    spec = manifest.get("spec")
    if not isinstance(spec, Mapping):
        raise RunFolderError("manifest.json has no spec; this run cannot continue, start it again")
    return RunSpec.from_json(spec, task, method, devices)


def move_policies_into_names(base: RunSpec, methods: Sequence[str | Method]) -> tuple[RunSpec, list[str | Method]]:
    """Move policies from the settings into the names of the methods.

    So a baseline with another deadline does not appear under its plain name, and the budget is that of the published
    method.

    Args:
        base: What all runs have in common.
        methods: Method names or objects.

    Returns:
        The runs without these settings, and the new names.

    Raises:
        BadSetting: If a method is an object, which has its policies already.
        UnknownName: If a method is unknown.
    """
    slots = _policies(base.overrides)
    named = [with_slots(method, slots) if slots and isinstance(method, str) else method for method in methods]
    for method in named:
        if isinstance(method, str):
            check_method_name(method)  # before the task is loaded
    if not slots:
        return base, named
    if not all(isinstance(method, str) for method in methods):
        raise BadSetting(
            f"settings cannot replace the policies ({', '.join(slots)}) of a Method object; pass them to "
            "fedbalancer.method(..., deadline=...)"
        )
    settings = {key: value for key, value in merge(base.overrides).items() if key not in slots}
    return replace(base, method=named[0], settings=settings), named


def full_method_name(method: str, settings: Mapping[str, Any]) -> str:
    """Return the canonical name of a method, including policies that the settings put into its slots.

    Args:
        method: The method's name.
        settings: The settings of the run.
    """
    slots = _policies(settings)
    return with_slots(method, slots) if slots else canonical_name(method)


def _policies(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that replace whole policies, by slot."""
    resolved = resolve(settings).policies
    for slot in SLOTS:
        if slot in resolved and not isinstance(resolved[slot], str):
            raise BadSetting(f"setting {slot} = {resolved[slot]!r} must be a policy, as in {slot}=package.module:Class")
    return {slot: resolved[slot] for slot in SLOTS if slot in resolved}


def _check_target(target: Any, timing_only: bool) -> None:
    if isinstance(target, bool) or not isinstance(target, Real) or not math.isfinite(target):
        raise BadSetting(f"target = {target!r} must be a finite number, such as 0.8")
    if timing_only:
        raise BadSetting(f"target = {target:g}: a run that only simulates the clock (timing_only) has no accuracy")


def _recorded_devices(recorded: Any, devices: Any) -> Any:
    """Return the devices of a run that is resumed, which must be those that it started with."""
    is_object = isinstance(recorded, Mapping) and recorded.get("kind") == DEVICE_OBJECT
    if is_object and devices is None:
        raise RunFolderError(
            f"this run was started with a device model of the user ({recorded.get('name')}), so it can continue only "
            "from Python: fedbalancer.resume(folder, devices=...)"
        )
    if is_object or (recorded is None and devices is None):
        return devices
    if recorded is None:
        raise RunFolderError("this run was started without devices; resume it without them, or start it again")
    if not isinstance(recorded, Mapping):
        raise RunFolderError(f"this run has invalid devices: {recorded!r}; start it again")
    if devices is None:
        return fleet_of_table(recorded)
    fleet = resolve_devices(devices)
    if not isinstance(fleet, Fleet) or fleet.digest != recorded.get("sha256"):
        raise RunFolderError("devices differ from those that the run started with; resume it without devices")
    return fleet


def _name_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _check_absolute(task: Any) -> None:
    """Refuse a relative path of a task file, which could mean another file on this machine."""
    if isinstance(task, str) and task.endswith(".toml") and not Path(task).is_absolute():
        raise RunFolderError(f"the run's task file {task!r} has no absolute path; start the run again")
