"""comparison.json: the plan of a comparison, in the folder of its runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import RunFolderError
from fedbalancer.core.files import write_json
from fedbalancer.core.metrics import ACCURACY, Metric

COMPARISON = "comparison.json"
TARGETS = (1.0, 0.95, 0.9)
"""Targets, as shares of the reference's final accuracy or other metric. The first one is the main target."""


@dataclass(frozen=True, kw_only=True)
class ComparisonFile:
    """The contents of comparison.json.

    Args:
        task: Name of the task, for display.
        variant: Name of the data set.
        scale: Scale of the task.
        methods: Names of the methods.
        seeds: Seeds of the runs.
        budgets_s: Time budget by seed.
        rounds: Number of rounds, where the budget is in rounds.
        extend: Factor by which runs may exceed the budget.
        rule: Rule by which the runs are evaluated and stopped.
        targets: Shares of the reference's final value.
        metric: Name and direction of the metric of targets and scores. Default: the accuracy.
        spec: The `RunSpec` that all runs share, as a dictionary. Empty if runs cannot be started from this file.
    """

    task: str = "unnamed task"
    variant: str = ""
    scale: str = ""
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    budgets_s: Mapping[int, float] = field(default_factory=dict)
    rounds: int | None = None
    extend: float = 1.0
    rule: str = "paper"
    targets: tuple[float, ...] = TARGETS
    metric: Mapping[str, Any] = field(default_factory=ACCURACY.to_json)
    spec: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the file to `folder`."""
        write_json(folder / COMPARISON, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> ComparisonFile:
        """Read the file in `folder`.

        Raises:
            RunFolderError: If the file is missing or invalid.
        """
        path = folder / COMPARISON
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise RunFolderError(f"{folder} holds no comparison: {COMPARISON} is missing") from error
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{path} cannot be read ({error}); run the comparison again") from error
        try:
            return cls._parse(content)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RunFolderError(
                f"{path} lacks a valid methods, seeds or budgets_s ({error!r}); run the comparison again"
            ) from error

    @classmethod
    def _parse(cls, content: Mapping[str, Any]) -> ComparisonFile:
        budgets_s = content.get("budgets_s") or {}
        return cls(
            methods=tuple(map(str, content["methods"])),
            seeds=tuple(map(int, content["seeds"])),
            budgets_s={int(seed): float(budget_s) for seed, budget_s in budgets_s.items() if budget_s is not None},
            task=str(content.get("task") or cls.task),
            variant=str(content.get("variant") or ""),
            scale=str(content.get("scale") or ""),
            rounds=content.get("rounds"),
            extend=float(content.get("extend") or cls.extend),
            rule=str(content.get("rule") or cls.rule),
            targets=tuple(map(float, content.get("targets") or cls.targets)),
            metric=Metric.from_json(content.get("metric")).to_json(),
            spec=content.get("spec") or {},
        )
