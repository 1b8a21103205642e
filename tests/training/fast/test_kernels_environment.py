"""A run can say on which processor and with which kernels it was made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from training.fast.test_kernels import ask, needs_compiler, quick

from fedbalancer.training.fast import kernels

ASK = (
    "import json; from fedbalancer.training.fast import kernels as p; "
    "print(json.dumps([p.describe_environment('fast'), p.describe_environment('plain')]))"
)


def test_the_files_named_are_those_that_are_loaded() -> None:
    found = kernels.describe_environment("fast")
    assert set(found) == {"processor", "conv", "dense", "lstm", "row", "words"}
    for name in ("conv", "dense", "lstm", "row", "words"):
        library = kernels.load(name)
        if library is None:
            assert found[name] == f"torch ({kernels.why_not(name)})"
        else:
            assert Path(library._name).name == found[name]


@needs_compiler
def test_another_compiler_makes_other_files_and_nothing_is_compiled_to_tell(tmp_path: Path) -> None:
    cc = quick(tmp_path / "cc")
    (one, plain), (other, _) = (json.loads(ask(tmp_path / "cache", ASK, CC=f"{cc} {flag}")) for flag in ("-DA", "-DB"))
    assert one["processor"] == other["processor"] == plain["processor"]
    assert set(plain) == {"processor"}
    assert all(one[name] != other[name] for name in ("conv", "dense", "lstm", "words"))
    assert not (tmp_path / "cache" / "kernels").exists()


@needs_compiler
def test_the_instructions_that_kernels_use_are_part_of_the_processor(tmp_path: Path) -> None:
    macros = "#define __AVX2__ 1\n#define __FMA__ 1\n#define __AVX512F__x 1\n"
    cc = tmp_path / "cc"
    cc.write_text(f"#!/bin/sh\nprintf '{macros}'\n")
    cc.chmod(0o755)
    found, _ = json.loads(ask(tmp_path, ASK, CC=str(cc)))
    assert found["processor"].endswith(", AVX2, FMA")


@pytest.mark.parametrize(
    ("environment", "reason"),
    [({"FEDBALANCER_KERNELS": "off"}, "switched off"), ({"CC": "there-is-none"}, "no C compiler: there-is-none")],
)
def test_where_there_are_none_it_says_why(environment: dict[str, str], reason: str, tmp_path: Path) -> None:
    found, _ = json.loads(ask(tmp_path, ASK, **environment))
    assert found["processor"]
    assert all(found[name].startswith(f"torch ({reason}") for name in ("conv", "dense", "lstm", "words"))
