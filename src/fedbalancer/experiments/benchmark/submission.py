"""Submissions: a method of a user's package with a manifest, tuned and scored like all others.

The manifest is a TOML file:

    owner = "Ann's lab"
    title = "closes a round at the median"
    suite = "tta-1"
    method = "fedavg+1t[deadline=ann.policies:Median]"

    [space]                                  # at most three hyper-parameters of the method
    own = ["deadline.share=.3..0.7", "epochs=1,2,5"]
    server_rate = "aggregate.eta=.1..1:log"  # only if it has one
"""

from __future__ import annotations

import importlib.util
import json
import tomllib
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import BadSetting, RunFolderError
from fedbalancer.core.files import readable, write_json
from fedbalancer.data.cache import digest
from fedbalancer.experiments.benchmark.suite import SUITES, find_suite, hash_code
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.experiments.sweep.space import Space
from fedbalancer.experiments.trust import code_of, remember
from fedbalancer.methods.names import canonical_name, parse_method_name
from fedbalancer.methods.search_spaces import SearchSpace, space_of
from fedbalancer.methods.table import BASES, method
from fedbalancer.store.contents import make_folder

FILE = "submissions.json"
KEYS = ("owner", "title", "suite", "method", "space")


@dataclass(frozen=True)
class Submission:
    """A checked manifest.

    Args:
        owner: Name of the owner.
        title: Description of the method in one line.
        suite: Name of the suite.
        method: Canonical name of the method.
        space: Its search space.
        packages: SHA-256 of the sources of every package that the method imports, by name.
    """

    owner: str
    title: str
    suite: str
    method: str
    space: SearchSpace
    packages: dict[str, str]


def read_submission(file: Path) -> Submission:
    """Read and check a manifest.

    Args:
        file: The manifest.

    Raises:
        RunFolderError: If the file cannot be read.
        BadSetting: If it is invalid, or the method is one of the table's.
        UnknownName: If there is no such suite or method.
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunFolderError(f"cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(f"{file} is not valid TOML: {error}") from error
    if unknown := sorted(content.keys() - set(KEYS)):
        raise BadSetting(f"{file} has the unknown key {unknown[0]!r}; it may have {', '.join(KEYS)}")
    texts = {key: content.get(key, default) for key, default in _DEFAULTS.items()}
    for key, text in texts.items():
        if not isinstance(text, str) or not text.strip() or len(text) > 200 or not text.isprintable():
            raise BadSetting(f"{key} in {file} must be printable text of 1 to 200 characters")
    name = canonical_name(texts["method"])
    if name in BASES:
        raise BadSetting(f"method {name!r} in {file} is built in; submit a method of your own package")
    find_suite(texts["suite"])
    space = _read_space(file, name, content.get("space"))
    values = Space.make(name, space.texts)
    for corner in ({}, *values.corners()):
        method(values.name(corner))  # imports and checks the policies, too
    return Submission(texts["owner"], texts["title"], texts["suite"], name, space, _packages(name))


_DEFAULTS = {"owner": "", "title": "", "suite": list(SUITES)[-1], "method": ""}


def _read_space(file: Path, name: str, table: Any) -> SearchSpace:
    if table is None:
        return space_of(name)
    values = table if isinstance(table, dict) else {"own": None}
    own, rate = values.get("own", []), values.get("server_rate")
    texts = [*own, *([] if rate is None else [rate])] if isinstance(own, list) else [None]
    if (
        own is None
        or not all(isinstance(each, str) and "=" in each for each in texts)
        or values.keys() - {"own", "server_rate"}
    ):
        raise BadSetting(f"space in {file} must have own = ['key=a,b', 'key=low..high'] and may have server_rate")
    return SearchSpace(tuple(own), rate)


def _packages(name: str) -> dict[str, str]:
    """Return the SHA-256 of the sources of the packages from which a method takes policies."""
    hashes = {}
    for text in parse_method_name(name).slots.values():
        path = text.partition("(")[0]
        package = path.partition(":")[0].partition(".")[0]
        origin = importlib.util.find_spec(package) if ":" in path else None
        if origin is not None and origin.origin is not None:
            place = Path(origin.origin)
            is_package = place.name == "__init__.py"
            hashes[package] = hash_code(place.parent, left_out=()) if is_package else digest(place)
    return hashes


def allow(submission: Submission) -> None:
    """Remember that the user started runs with the code of a submission."""
    base = find_suite(submission.suite).cells[0]
    remember(code_of(RunSpec(task=base.task, method=submission.method)))


def add_submission(results: Path, submission: Submission) -> None:
    """Add a submission to the list in the results; an earlier one of the same owner and method is replaced.

    Args:
        results: Folder of the results.
        submission: The submission.
    """
    make_folder(results)
    entry = {**asdict(submission), "added": datetime.now(UTC).isoformat(timespec="seconds")}
    key = (submission.owner, submission.method)
    others = [each for each in read_submissions(results) if (each["owner"], each["method"]) != key]
    write_json(results / FILE, readable({"submissions": [*others, entry]}))


def read_submissions(results: Path) -> list[dict[str, Any]]:
    """Return the submissions in a folder of results; none if there is no list.

    Args:
        results: Folder of the results.

    Raises:
        RunFolderError: If the list is damaged.
    """
    file = results / FILE
    if not file.is_file():
        return []
    try:
        return list(json.loads(file.read_text(encoding="utf-8"))["submissions"])
    except (ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{file} is damaged: {error}") from error
