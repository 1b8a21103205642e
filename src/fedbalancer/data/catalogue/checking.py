"""Every data set that is here, loaded for real."""

from __future__ import annotations

from dataclasses import dataclass

from fedbalancer.core.errors import FedBalancerError, MissingData
from fedbalancer.data.catalogue.catalog import sources_of
from fedbalancer.data.catalogue.facts import Facts, inspect, remember
from fedbalancer.data.registry import TASKS
from fedbalancer.data.source import Source


@dataclass(frozen=True)
class Check:
    """What came of loading one data set: facts or an error in one line."""

    task: str
    variant: str
    facts: Facts | None
    error: str = ""


def check_all(task: str | None = None, scale: str = "small") -> list[Check]:
    """Load what is here of one task or of all. A named task of which nothing is here is `MissingData`."""
    tasks = TASKS if task is None else (task,)
    checks = [_check(name, source, scale) for name in tasks for source in _present(name)]
    if task is not None and not checks:
        files = " or ".join(", ".join(map(str, source.paths)) for source in sources_of(task))
        raise MissingData(f"no data of task {task!r} is here: neither {files}; type: fedbalancer data get {task}")
    return checks


def _present(task: str) -> list[Source | None]:
    """Sources that are here, if only in part; None for a task that needs no files."""
    sources = sources_of(task)
    if not sources:
        return [None]
    return [source for source in sources if any(path.exists() for path in source.paths)]


def _check(task: str, source: Source | None, scale: str) -> Check:
    variant = "" if source is None else source.variant
    try:
        facts = inspect(task, source, scale)
    except FedBalancerError as error:
        return Check(task, variant, None, " ".join(str(error).split()))
    if source is not None:
        remember(facts, source)
    return Check(task, variant, facts)
