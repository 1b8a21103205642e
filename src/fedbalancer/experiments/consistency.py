"""The task, settings, versions and kernels that the runs of one comparison share, read from their manifests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.files import readable
from fedbalancer.core.settings import RUN_KEYS
from fedbalancer.methods.names import parse_method_name
from fedbalancer.reporting.rule import GRID
from fedbalancer.store import ComparisonFile, read_manifest
from fedbalancer.store.contents import MANIFEST

OF_ONE_RUN = ("method", "seed", "budget_s", "target", "rounds", "settings")
"""Fields of a spec that differ between the runs of a comparison, or are compared as settings."""
NOT_SET = "not set"
MOST = 5
"""Number of differences that a message lists."""


@dataclass(frozen=True)
class RunRecord:
    """A run of a comparison, as its manifest describes it.

    Args:
        source: The folder of the comparison, or another name for messages.
        method: Name of the method in the comparison.
        seed: The seed.
        budget_s: The budget of the seed.
        manifest: Content of manifest.json.
        path: The run folder.
    """

    source: str
    method: str
    seed: int
    budget_s: float | None
    manifest: Mapping[str, Any]
    path: Path = Path()

    @property
    def facts(self) -> dict[str, Any]:
        """The values that all runs of a comparison share, by name: task, options and settings of the run."""
        spec, task = self.manifest.get("spec") or {}, self.manifest.get("task")
        options = {name: value for name, value in spec.items() if name not in OF_ONE_RUN}
        if isinstance(devices := options.get("devices"), Mapping):  # a fleet is the same wherever its file is
            options["devices"] = devices.get("sha256", devices)
        settings = self._without_grid(spec.get("settings") or {})
        resolved = self._without_grid(self.manifest.get("settings") or {})
        own = _own_settings(self.method)
        shared = {name: value for name, value in resolved.items() if name in RUN_KEYS and name not in own}
        described = {f"task {name}": value for name, value in task.items()} if isinstance(task, Mapping) else {}
        return {**options, **described, **settings, **shared}

    @property
    def resolved(self) -> dict[str, Any]:
        """All settings of the run, with those of its policies."""
        return self._without_grid(self.manifest.get("settings") or {})

    @property
    def environment(self) -> dict[str, Any]:
        """Versions of packages, and the processor with its kernels, by name."""
        kernels = self.manifest.get("kernels") or {}
        return {**(self.manifest.get("versions") or {}), **kernels}

    def _without_grid(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Leave out the step of the grid, if it follows from the budget of the seed."""
        budget_s, step_s = self.budget_s, settings.get("eval_every_s")
        derived = budget_s is not None and step_s == budget_s / GRID
        return {name: value for name, value in settings.items() if name != "eval_every_s" or not derived}


def read_records(folder: Path, file: ComparisonFile | None = None) -> list[RunRecord]:
    """Read the manifests of all runs that exist in a comparison folder.

    Args:
        folder: The folder of the comparison.
        file: The content of its comparison.json, if it is known.

    Raises:
        RunFolderError: If the folder holds no comparison, or a manifest is damaged.
    """
    file = file if file is not None else ComparisonFile.read(folder)
    return [
        RunRecord(str(folder), method, seed, file.budgets_s.get(seed), read_manifest(path), path)
        for seed in file.seeds
        for method in file.methods
        if ((path := folder / method / f"seed-{seed}") / MANIFEST).is_file()
    ]


def find_differences(records: Sequence[RunRecord]) -> list[str]:
    """Return what differs in the task, the options or the settings of runs that should share them.

    Args:
        records: The runs.

    Returns:
        One description per name, with both values and where they are from.
    """
    differences: dict[str, str] = {}
    for record in records[1:]:
        differences |= _compare(records[0], record, records[0].facts, record.facts)
    by_method: dict[str, RunRecord] = {}
    for record in records:
        first = by_method.setdefault(record.method, record)
        prefix = f"{record.method}: "
        found = _compare(first, record, first.resolved, record.resolved, prefix)
        differences |= {name: text for name, text in found.items() if name.removeprefix(prefix) not in differences}
    return list(differences.values())


def find_mixtures(records: Sequence[RunRecord]) -> list[str]:
    """Return what differs in the versions of packages, the processor or its kernels.

    Args:
        records: The runs.
    """
    mixtures: dict[str, str] = {}
    for record in records[1:]:
        first, other = records[0].environment, record.environment
        known = {name: value for name, value in first.items() if name in other}
        mixtures = {**_compare(records[0], record, known, {name: other[name] for name in known}), **mixtures}
    return list(mixtures.values())


def list_some(texts: Iterable[str]) -> str:
    """Join the first few texts, and say how many there are besides.

    >>> list_some(str(number) for number in range(7))
    '0; 1; 2; 3; 4; and 2 more'
    """
    every = list(texts)
    more = [f"and {len(every) - MOST} more"] if len(every) > MOST else []
    return "; ".join([*every[:MOST], *more])


def _compare(
    first: RunRecord, other: RunRecord, values: Mapping[str, Any], others: Mapping[str, Any], prefix: str = ""
) -> dict[str, str]:
    left, right = readable(dict(values)), readable(dict(others))
    names = [name for name in dict.fromkeys([*left, *right]) if left.get(name, NOT_SET) != right.get(name, NOT_SET)]
    return {
        f"{prefix}{name}": f"{prefix}{name} is {left.get(name, NOT_SET)} in {first.source}, "
        f"{right.get(name, NOT_SET)} in {other.source}"
        for name in names
    }


def _own_settings(method: str) -> Mapping[str, Any]:
    """Return the settings in the brackets of a method's name; none for the name of a `Method` object."""
    try:
        return parse_method_name(method).settings
    except (BadSetting, UnknownName):
        return {}
