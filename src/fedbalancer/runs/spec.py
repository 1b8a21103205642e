"""What to run: everything that decides the result of a run, and how it is written down in the manifest."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedbalancer.client.fast.provenance import description
from fedbalancer.client.train import ENGINES
from fedbalancer.errors import BadSetting, RunFolderError, UnknownName
from fedbalancer.methods import Method
from fedbalancer.settings import Settings
from fedbalancer.tasks import Task, load_task

DEVICE = re.compile(r"cpu|mps|cuda(:\d+)?")
OLD_ENGINE = "plain"
"""Of runs from before there was a choice."""


@dataclass(frozen=True)
class RunSpec:
    """One run. `task` and `method` are names, or objects of your own.

    It stops after `rounds` rounds (default: the task's) or, if `budget_s` is given, when the clock passes that. With a
    `target` accuracy it also stops at the first evaluation that reaches it. The numbers depend in their last digits on
    the `engine` (fast or plain) and the `device` that train.
    """

    task: str | Task
    method: str | Method
    seed: int = 0
    scale: str = "small"
    users: int | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    rounds: int | None = None
    budget_s: float | None = None
    target: float | None = None
    timing_only: bool = False
    variant: str | None = None
    engine: str = "fast"
    device: str = "cpu"

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", whole_path(self.task))
        if not 0 <= self.seed < 2**63:
            raise BadSetting(f"seed = {self.seed} must be a whole number from 0 to 2**63 - 1")
        if self.rounds is not None and self.rounds < 1:
            raise BadSetting(f"rounds = {self.rounds} must be at least 1")
        if self.budget_s is not None and not 0 < self.budget_s < float("inf"):
            raise BadSetting(f"budget = {self.budget_s} must be a finite number of seconds over 0")
        if self.users is not None and self.users < 1:
            raise BadSetting(f"users = {self.users} must be at least 1")
        if self.engine not in ENGINES:
            raise UnknownName("engine", self.engine, ENGINES)
        if not DEVICE.fullmatch(self.device):
            raise BadSetting(f"device = {self.device!r} must be cpu, cuda, cuda:NUMBER or mps")

    @property
    def method_name(self) -> str:
        return self.method if isinstance(self.method, str) else self.method.name

    def load_task(self) -> Task:
        """The task itself."""
        if isinstance(self.task, Task):
            return self.task
        return load_task(self.task, scale=self.scale, users=self.users, variant=self.variant)

    def manifest(self, task: Task, settings: Settings) -> dict[str, Any]:
        """What the run folder says about this run before it starts."""
        return {
            "task": {
                "name": task.name,
                "variant": task.variant,
                "scale": self.scale,
                "users": self.users,
                "variant_asked": self.variant,
                "source": self.task if isinstance(self.task, str) else None,
            },
            "method": self.method_name,
            "method_is_named": isinstance(self.method, str),
            "seed": self.seed,
            "overrides": dict(self.overrides),
            "settings": settings.model_dump(mode="json"),
            "rounds": self.rounds,
            "budget_s": self.budget_s,
            "target": self.target,
            "timing_only": self.timing_only,
            "engine": self.engine,
            "device": self.device,
            "versions": versions(),
            "kernels": description(self.engine if self.device == "cpu" and not self.timing_only else "none"),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
        }


def from_manifest(manifest: Mapping[str, Any], task: Task | None = None, method: Method | None = None) -> RunSpec:
    """The spec that a manifest describes; objects of the user's own have to be given again."""
    source = manifest["task"]["source"] or task
    chosen = manifest["method"] if manifest["method_is_named"] else method
    if source is None or chosen is None:
        raise RunFolderError(
            "this run was started from Python with its own task or method; "
            "resume it there with fedbalancer.resume(folder, task=..., method=...)"
        )
    return RunSpec(
        task=source,
        method=chosen,
        seed=manifest["seed"],
        scale=manifest["task"]["scale"],
        users=manifest["task"]["users"],
        overrides=manifest["overrides"],
        rounds=manifest["rounds"],
        budget_s=manifest["budget_s"],
        target=manifest["target"],
        timing_only=manifest["timing_only"],
        variant=manifest["task"]["variant_asked"],
        engine=manifest.get("engine", OLD_ENGINE),
        device=manifest.get("device", "cpu"),
    )


def whole_path(task: str | Task) -> str | Task:
    """A task that is a file, by its whole path, so that `resume` finds it from anywhere."""
    return str(Path(task).absolute()) if isinstance(task, str) and task.endswith(".toml") else task


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    found = {"python": platform.python_version()}
    for package in ("fedbalancer", "numpy", "torch", "polars"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
