"""The commands that make these results again, from what the runs wrote down about themselves."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedbalancer.report.stored import Results
from fedbalancer.store import ComparisonFile

_OPTIONS = {"scale": "small", "users": None, "variant": None, "engine": "fast", "device": "cpu"}
"""What all runs of a command share, with what it is unless told."""


def commands(results: Results) -> Iterator[str]:
    """How to run it again and how to make the page anew; nothing for runs that a command cannot start."""
    spec = results.runs[0].manifest.get("spec") if results.single else ComparisonFile.read(results.folder).spec
    if isinstance(spec, Mapping) and isinstance(spec.get("task"), str) and spec.get("method"):
        yield shlex.join(_again(results, spec))
    yield shlex.join(["fedbalancer", "report", _from_here(results.folder)])


def _from_here(folder: Path) -> str:
    """The folder as it was given; by the way from where we are if it lies below, for a page may go to others."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


def _again(results: Results, spec: Mapping[str, Any]) -> Iterator[str]:
    if results.single:
        yield from ["fedbalancer", "run", spec["task"], "--method", spec["method"], "--seed", str(spec["seed"])]
        if spec.get("budget_s") is not None:
            yield from ["--budget", f"{spec['budget_s']:g}"]
        elif spec.get("rounds") is not None:
            yield from ["--rounds", str(spec["rounds"])]
    else:
        yield from ["fedbalancer", "compare", spec["task"], "--methods", ",".join(results.methods)]
        yield from ["--seeds", _seeds(results.seeds)]
        if results.rule != "fair":
            yield from ["--rule", results.rule]
    for name, default in _OPTIONS.items():
        if spec.get(name, default) != default:
            yield from [f"--{name}", str(spec[name])]
    for key, value in (spec.get("settings") or {}).items():
        if key != "rounds" or results.single:
            yield from ["--set", f"{key}={value}"]
        else:
            yield from ["--rounds", str(value)]
    yield from ["--out", _from_here(results.folder)]


def _seeds(seeds: tuple[int, ...]) -> str:
    """As `--seeds` takes them.

    >>> _seeds((0, 1, 2)), _seeds((10, 11, 12)), _seeds((4, 7))
    ('3', '10..12', '4,7')
    """
    if seeds != tuple(range(seeds[0], seeds[0] + len(seeds))):
        return ",".join(map(str, seeds))
    return str(len(seeds)) if not seeds[0] else f"{seeds[0]}..{seeds[-1]}"
