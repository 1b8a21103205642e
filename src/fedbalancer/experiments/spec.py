"""What to run: everything that decides the result of a run, and how it is written down and read back whole."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral
from pathlib import Path
from typing import Any, TypedDict

from fedbalancer.core.errors import BadSetting, RunFolderError, UnknownName
from fedbalancer.core.settings import Settings, resolve
from fedbalancer.data import Task, load_task
from fedbalancer.data.clients import add_label_noise
from fedbalancer.methods.names import canonical_name, check_name, parse_method_name
from fedbalancer.methods.table import Method
from fedbalancer.store import new_manifest
from fedbalancer.training.fast.kernels import describe_environment
from fedbalancer.training.trainer import BACKENDS

DEVICE = re.compile(r"cpu|mps|cuda(:\d+)?")


class RunOptions(TypedDict, total=False):
    """The options that `fedbalancer.run` and `fedbalancer.compare` have in common, by keyword.

    `settings` change single settings of the task or the method, as `--set` does for a command: a mapping from names of
    `fedbalancer list settings` to values. A named task comes in the size `scale` (small, or paper as published), with
    so many `users` and from the data set `variant` where it offers a choice. `rounds` are the task's unless told; in a
    comparison they are those of FedAvg+1T, whose clock is the budget of all. The numbers depend in their last digits on
    the `backend` (fast or plain) and the `device` (cpu, cuda or mps) that train.

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
    backend: str
    device: str


def check_options(options: Mapping[str, Any]) -> None:
    """Raise a sentence for a keyword that is no option; a setting is told where it belongs."""
    for name, value in options.items():
        if name in Settings.model_fields and name not in RunOptions.__annotations__:
            raise BadSetting(f"{name} is a setting of the task or the method: settings={{{name!r}: {value!r}}}")
        if name not in RunOptions.__annotations__:
            raise UnknownName("option", name, tuple(RunOptions.__annotations__))


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run. `task` and `method` are names, or objects of your own; `seed` decides everything random.

    A named task comes in the size `scale` (small, or paper as published), with so many `users` and from the data set
    `variant` where it offers a choice. `settings` change single settings of the task or the method.

    The run stops after `rounds` rounds (default: the task's) or, if `budget_s` is given, when the simulated clock
    passes that. With a `target` accuracy it also stops when that was reached: by an evaluation by rounds and, if the
    settings ask for a grid of seconds (`eval_every_s`), by the mean of three in a row on that. If it is `timing_only`
    nothing is trained. The numbers depend in their last digits on the `backend` (fast or plain) and the `device` (cpu,
    cuda or mps) that train.
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
    timing_only: bool = False
    backend: str = "fast"
    device: str = "cpu"

    def __post_init__(self) -> None:
        if isinstance(self.task, str) and self.task.endswith(".toml"):  # so that `resume` finds it from anywhere
            object.__setattr__(self, "task", str(Path(self.task).absolute()))
        if isinstance(self.method, str):
            object.__setattr__(self, "method", canonical_name(self.method))
        elif self.method is not None:
            check_name(self.method.name)
        for name in ("seed", "rounds", "users"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, Integral)):
                raise BadSetting(f"{name} = {value!r} must be a whole number")
        if not 0 <= self.seed < 2**63:
            raise BadSetting(f"seed = {self.seed} must be a whole number from 0 to 2**63 - 1")
        if self.rounds is not None and self.rounds < 1:
            raise BadSetting(f"rounds = {self.rounds} must be at least 1")
        if self.budget_s is not None and not 0 < self.budget_s < float("inf"):
            raise BadSetting(f"budget = {self.budget_s} must be a finite number of seconds over 0")
        if self.users is not None and self.users < 1:
            raise BadSetting(f"users = {self.users} must be at least 1")
        if self.backend not in BACKENDS:
            raise UnknownName("backend", self.backend, BACKENDS)
        if not DEVICE.fullmatch(self.device):
            raise BadSetting(f"device = {self.device!r} must be cpu, cuda, cuda:NUMBER or mps")

    @property
    def method_name(self) -> str:
        return self.method if isinstance(self.method, str) else self.method.name

    @property
    def key(self) -> tuple[str, int]:
        """What tells the runs of a comparison apart."""
        return self.method_name, self.seed

    @property
    def overrides(self) -> dict[str, Any]:
        """The settings that differ from the task's own."""
        return dict(self.settings or {})

    @property
    def own_settings(self) -> Mapping[str, Any]:
        """The settings in the brackets of the method's name, which go over all others."""
        return parse_method_name(self.method).layer if isinstance(self.method, str) else self.method.settings

    def load_task(self) -> Task:
        """The task itself."""
        task = self.task
        if not isinstance(task, Task):
            task = load_task(task, scale=self.scale, users=self.users, variant=self.variant)
        share = resolve({key: value for key, value in self.overrides.items() if key == "label_noise"}).label_noise
        return add_label_noise(task, share)

    def to_json(self) -> dict[str, Any]:
        """All fields, for `from_json`. A task or method of the user's own cannot be written down, and is null."""
        written = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**written, **{name: _if_named(written[name]) for name in ("task", "method")}}

    @classmethod
    def from_json(cls, written: Mapping[str, Any], task: Task | None = None, method: Method | None = None) -> RunSpec:
        """What `to_json` wrote down; a task or method of the user's own has to be given again."""
        unknown = written.keys() - {each.name for each in fields(cls)}
        if unknown:
            raise RunFolderError(f"this run has options that this version does not know: {', '.join(sorted(unknown))}")
        found = {**written, "task": written.get("task") or task, "method": written.get("method") or method}
        if found["task"] is None or found["method"] is None:
            raise RunFolderError(
                "this was started from Python with a task or methods of its own, so it can go on only there: a run "
                "with fedbalancer.resume(folder, task=..., method=...), a comparison from its start"
            )
        _check_absolute(found["task"])
        try:
            dict(found.get("settings") or {})
            return cls(**found)
        except (AttributeError, TypeError, ValueError, BadSetting) as error:
            raise RunFolderError(f"this run has options of the wrong kind: {error}") from error

    def manifest(self, task: Task, settings: Settings) -> dict[str, Any]:
        """What the run folder says about this run before it starts."""
        known = {"name": task.name, "variant": task.variant, "scale": self.scale, "users": self.users}
        return new_manifest(
            task={**known, "source": _if_named(self.task)},
            settings=settings.model_dump(mode="json"),
            kernels=self.kernels(),
            **self.described(),
        )

    def kernels(self) -> dict[str, str]:
        """The processor and, by its name, what does the work of every kernel, as far as it is known by now."""
        return describe_environment(self.backend if self.device == "cpu" and not self.timing_only else "none")

    def described(self) -> dict[str, Any]:
        """The fields of the manifest that are the spec's: the whole of it, and what people look for first."""
        return {
            "method": self.method_name,
            "seed": self.seed,
            "budget_s": self.budget_s,
            "backend": self.backend,
            "device": self.device,
            "spec": self.to_json(),
        }


def from_manifest(manifest: Mapping[str, Any], task: Task | None = None, method: Method | None = None) -> RunSpec:
    """The spec that a manifest describes; objects of the user's own have to be given again."""
    return RunSpec.from_json(manifest.get("spec", {}), task, method)


def _if_named(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _check_absolute(task: Any) -> None:
    """Refuse a task file whose place depends on where one is: a folder from elsewhere could mean any file."""
    if isinstance(task, str) and task.endswith(".toml") and not Path(task).is_absolute():
        raise RunFolderError(
            f"this run names its task file {task!r} without its folder, so it cannot go on; run it again"
        )
