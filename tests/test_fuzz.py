"""Whatever a file holds, its reader has it or says in one line what is wrong: no other error, no hang.

A hundred examples each here; `make soak` tries 20,000.
"""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedbalancer.core.errors import FedBalancerError
from fedbalancer.core.settings import parse_assignments, read_config, resolve
from fedbalancer.data.archives import unpack
from fedbalancer.data.own.toml import load_toml
from fedbalancer.methods.names import canonical_name
from fedbalancer.reporting.results import load
from fedbalancer.simulation.attacks import parse_attack
from fedbalancer.simulation.devices import read_traces

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
PLAIN = st.integers(-3, 10) | st.floats() | st.text(max_size=5) | st.booleans()
many = pytest.mark.parametrize("examples", [100, pytest.param(20_000, marks=pytest.mark.soak)])


def tried(examples: int, what: st.SearchStrategy[Any], check: Callable[[Any], object]) -> None:
    """Try `check` on a number of examples; an error of this package is a valid answer."""

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(what)
    def one(value: Any) -> None:
        with suppress(FedBalancerError):
            check(value)

    one()


@many
def test_settings_of_any_file_or_assignment(tmp_path: Path, examples: int) -> None:
    file = tmp_path / "fedbalancer.toml"

    def check(raw: bytes) -> None:
        file.write_bytes(raw)
        resolve(read_config(file))

    keys = st.sampled_from([b"w", b"p", b"deadline", b"attacks", b"latency", b"nonsense"])
    lines = st.tuples(keys, st.binary(max_size=20)).map(lambda pair: pair[0] + b" = " + pair[1])
    tried(examples, st.binary(max_size=60) | lines, check)
    tried(examples, st.text(max_size=30), lambda text: resolve(parse_assignments([text, f"w={text}"])))


@many
def test_names_of_methods_and_attacks(examples: int) -> None:
    parts = st.sampled_from(["fedbalancer", "[", "]", "w=", "5", ",", "(", ")", "'", ":", "1", "update-flip", "a.b:C"])
    texts = st.lists(parts, max_size=8).map("".join) | st.text(max_size=20)
    tried(examples, texts, canonical_name)
    tried(examples, texts, parse_attack)


@many
def test_availability_traces(tmp_path: Path, examples: int) -> None:
    file = tmp_path / "traces.json"

    def check(content: Any) -> None:
        file.write_text(json.dumps(content))
        read_traces(str(file))

    pairs = st.lists(st.lists(PLAIN, min_size=1, max_size=3), max_size=3)
    tried(examples, JSON | st.dictionaries(st.text(max_size=3), pairs, max_size=3), check)


@many
def test_task_files(tmp_path: Path, examples: int) -> None:
    file = tmp_path / "task.toml"

    def check(text: str) -> None:
        file.write_text(text, encoding="utf-8", errors="replace")
        load_toml(file)

    lines = st.sampled_from(["[data]", "kind = 'npz'", "path = 'x'", "[model]", "name = 1", "[settings]", "w = 0", "a"])
    tried(examples, st.lists(lines, max_size=6).map("\n".join) | st.text(max_size=40), check)


@many
def test_run_folders(tmp_path: Path, examples: int) -> None:
    def check(files: dict[str, bytes]) -> None:
        for name, raw in files.items():
            (tmp_path / name).write_bytes(raw)
        load(tmp_path)

    manifest = JSON.map(
        lambda value: json.dumps({"method": value, "task": value, "seed": 1, "settings": value}).encode()
    )
    names = ("rounds.parquet", "evals.parquet", "clients.parquet", "population.parquet", "privacy.parquet")
    damaged = {name: st.binary(max_size=30) | st.just(b"PAR1") for name in names}
    tried(examples, st.fixed_dictionaries({"manifest.json": manifest | st.binary(max_size=30), **damaged}), check)


@many
def test_archives(tmp_path: Path, examples: int) -> None:
    count = 0

    def check(example: tuple[str, bytes]) -> None:
        nonlocal count
        count += 1
        kind, raw = example
        archive = tmp_path / f"a.{kind}"
        archive.write_bytes(raw)
        unpack(archive, tmp_path / f"out-{count % 5}" / "inside")
        assert not (tmp_path / "evil").exists()

    tried(examples, st.sampled_from(["zip", "tar", "tar.gz"]).flatmap(_archive), check)


def _archive(kind: str) -> st.SearchStrategy[tuple[str, bytes]]:
    """A real archive in which one byte is another, or any bytes."""
    whole = _zipped() if kind == "zip" else _tarred("w:gz" if kind.endswith("gz") else "w")
    place = st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255))
    changed = place.map(lambda at: (kind, whole[: at[0]] + bytes([at[1]]) + whole[at[0] + 1 :]))
    return changed | st.binary(max_size=40).map(lambda raw: (kind, raw))


def _zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("set/a.txt", "one " * 20)
    return file.getvalue()


def _tarred(mode: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:  # type: ignore[call-overload]
        member = tarfile.TarInfo("set/a.txt")
        member.size = 4
        archive.addfile(member, io.BytesIO(b"data"))
    return file.getvalue()
