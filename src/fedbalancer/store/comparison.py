"""comparison.json: what a folder of many runs compares. Written and read here only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import RunFolderError
from fedbalancer.core.files import write_json

COMPARISON = "comparison.json"
TARGETS = (1.0, 0.95, 0.9)
"""Shares of the reference's final accuracy at which times are taken, the main one first."""


@dataclass(frozen=True, kw_only=True)
class ComparisonFile:
    """The contents of comparison.json. `task` is a name for people; `spec` is what all runs have in common, as a
    `RunSpec` writes itself (empty where the runs cannot be started from this file). `budgets_s` are by seed. `rule` is
    that by which the runs were evaluated and stopped; older versions knew the paper's only."""

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
    spec: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Replace the file in `folder`."""
        write_json(folder / COMPARISON, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> ComparisonFile:
        """The file in `folder`; a `RunFolderError` says what is wrong with it."""
        path = folder / COMPARISON
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise RunFolderError(f"{folder} holds no comparison: {COMPARISON} is missing") from error
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{path} cannot be read ({error}); run the comparison again") from error
        try:
            return cls._of(content)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RunFolderError(
                f"{path} lacks a valid methods, seeds or budgets_s ({error!r}); run the comparison again"
            ) from error

    @classmethod
    def _of(cls, content: Mapping[str, Any]) -> ComparisonFile:
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
            spec=content.get("spec", content),  # of older versions, which had no such part, `RunSpec` knows more
        )
