"""A file is there whole or not at all, and no temporary file outlives a write."""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from fedbalancer.core import files


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_write_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    files.write_bytes(file, b"old and long")
    files.write_bytes(file, b"new")
    assert file.read_bytes() == b"new"
    assert names(tmp_path) == ["a.bin"]


def test_text_is_utf8(tmp_path: Path) -> None:
    files.write_text(tmp_path / "a.md", "ε × 2")
    assert (tmp_path / "a.md").read_bytes() == "ε × 2".encode()


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.bin"
    files.write_bytes(file, b"old")

    def full(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        files.write_bytes(file, b"new")
    assert file.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")
def test_others_may_read_as_the_umask_allows(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    files.write_bytes(tmp_path / "atomic", b"")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "atomic")}
    assert len(modes) == 1


def test_json_is_strict_indented_and_in_order(tmp_path: Path) -> None:
    value = {
        "z": math.inf,
        "a": (-math.inf, math.nan, 1.5),
        "n": np.int64(3),
        "v": np.array([1.0, math.nan]),
        "p": tmp_path,
    }
    files.write_json(tmp_path / "a.json", value)
    text = (tmp_path / "a.json").read_text(encoding="utf-8")

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    loaded = json.loads(text, parse_constant=refuse)
    assert list(loaded) == ["z", "a", "n", "v", "p"]
    assert loaded == {"z": "inf", "a": ["-inf", "nan", 1.5], "n": 3, "v": [1.0, "nan"], "p": str(tmp_path)}
    assert text.startswith('{\n  "z": "inf"')


def test_clean_removes_only_our_temporaries(tmp_path: Path) -> None:
    (tmp_path / f".a.json.123{files.TEMPORARY_SUFFIX}").write_bytes(b"half")
    (tmp_path / ".hidden.tmp").write_bytes(b"someone's")
    files.clean_temporaries(tmp_path)
    assert names(tmp_path) == [".hidden.tmp"]
