"""What is known of a task's data: counted once by really loading it, then remembered while its files stay."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedbalancer.core.errors import BadData, FedBalancerError
from fedbalancer.core.files import write_json
from fedbalancer.core.paths import cache_folder
from fedbalancer.core.task import TEST, Task, check_alike, check_samples
from fedbalancer.data.registry import SCALES, load_task
from fedbalancer.data.source import Source


@dataclass(frozen=True)
class Facts:
    """Users and samples to train on, samples to test on, and different labels, at one scale."""

    task: str
    variant: str
    scale: str
    users: int
    samples: int
    test_samples: int
    labels: int


class Disk(NamedTuple):
    """What the files of a source are on disk."""

    files: int
    size_bytes: int
    changed_ns: int


def inspect(task: str, source: Source | None, scale: str = "small") -> Facts:
    """Load a task and look at every sample of it. Whatever its loader stumbles over is an error of ours."""
    variant = None if source is None else source.variant
    try:
        return count(load_task(task, scale=scale, variant=variant), task, scale)
    except FedBalancerError:
        raise
    except Exception as error:
        raise BadData(f"{_called(task, variant)} cannot be read: {type(error).__name__}: {error}") from error


def count(loaded: Task, name: str, scale: str) -> Facts:
    """The facts of a loaded task; raises `BadData` for a sample that cannot be trained on."""
    labels: set[float] = set()
    for client, samples in loaded.clients.items():
        check_samples(samples, f"client {client!r}", loaded.classes)
        check_alike({TEST: loaded.test, f"client {client!r}": samples})
        labels.update(np.unique(samples[1]).tolist())
    labels.update(np.unique(loaded.test[1]).tolist())
    sizes = loaded.sizes
    return Facts(name, loaded.variant, scale, len(sizes), sum(sizes.values()), len(loaded.test[1]), len(labels))


def disk(paths: Sequence[Path]) -> Disk:
    """How many files there are below the paths, how large they are, and when the last one changed."""
    files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else (path,)) if file.is_file()]
    stats = [file.stat() for file in files]
    return Disk(len(files), sum(stat.st_size for stat in stats), max((stat.st_mtime_ns for stat in stats), default=0))


def remember(facts: Facts, source: Source) -> None:
    """Keep the facts for `recall`; that this is not possible does not matter."""
    note = _note(source, facts.scale, disk(source.paths))
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        write_json(note, asdict(facts))


def recall(source: Source, at: Disk) -> Facts | None:
    """What was last remembered of these files, at the largest scale that was looked at."""
    for scale in reversed(SCALES):
        try:
            return Facts(**json.loads(_note(source, scale, at).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            continue
    return None


def _note(source: Source, scale: str, at: Disk) -> Path:
    state = [source.task, source.variant, scale, [str(path) for path in source.paths], at]
    return cache_folder() / "facts" / f"{hashlib.sha256(json.dumps(state).encode()).hexdigest()[:32]}.json"


def _called(task: str, variant: str | None) -> str:
    return f"task {task!r}" if variant is None else f"variant {variant!r} of task {task!r}"
