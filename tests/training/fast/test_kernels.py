"""Kernels are compiled once, by the first process; where this fails, torch is used and the reason is shown."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

COMPILER = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
needs_compiler = pytest.mark.skipif(COMPILER is None or sys.platform == "win32", reason="needs a C compiler")
ASK = "from fedbalancer.training.fast import kernels; print(kernels.load('conv') is not None, kernels.why_not('conv'))"


def ask(cache: Path, code: str = ASK, **environment: str) -> str:
    """Return the output of a fresh process."""
    kept = {name: value for name, value in os.environ.items() if name not in ("CC", "FEDBALANCER_KERNELS")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=kept | {"FEDBALANCER_CACHE": str(cache)} | environment,
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def compiler(path: Path, script: str) -> str:
    """A compiler of our own, as a shell script."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def quick(path: Path) -> str:
    """The real compiler, on an empty file instead of the kernels, unoptimized; it counts its calls that compile."""
    empty = path.with_name("empty.c")
    empty.write_text("int nothing;\n")
    return compiler(
        path,
        f'case "$*" in *" -E "*) exec {COMPILER} "$@";; esac\n'
        f'echo compiled >> {path}.log\nwhile [ "$1" != "-o" ]; do shift; done\n'
        f'exec {COMPILER} -shared -fPIC -o "$2" {empty}',
    )


def count(cc: str) -> int:
    return Path(f"{cc}.log").read_text().count("compiled")


@needs_compiler
def test_four_processes_at_once_all_get_the_kernel_and_leave_one_file(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: ask(tmp_path), range(4)))
    assert answers == ["True None"] * 4
    assert sorted(path.suffix for path in (tmp_path / "kernels").iterdir()) == [".sha256", ".so"]


@needs_compiler
def test_a_kernel_is_compiled_once_and_again_for_another_compiler_or_a_damaged_file(tmp_path: Path) -> None:
    cache, cc = tmp_path / "cache", quick(tmp_path / "cc")
    assert [ask(cache, CC=cc) for _ in range(2)] == ["True None"] * 2
    assert count(cc) == 1
    assert ask(cache, CC=f"{cc} -DOTHER=1") == "True None"
    assert count(cc) == 2
    assert len(list((cache / "kernels").glob("*.so"))) == 2
    for file in (cache / "kernels").glob("*.so"):
        file.write_bytes(b"cut off")
    assert ask(cache, CC=cc) == "True None"
    assert count(cc) == 3


@needs_compiler
@pytest.mark.parametrize("kept", [0.25, 0.5, 0.9, 0.99])
def test_a_kernel_that_was_cut_off_is_made_again_before_it_is_loaded(tmp_path: Path, kept: float) -> None:
    assert ask(tmp_path) == "True None"
    (file,) = (tmp_path / "kernels").glob("*.so")
    whole = file.read_bytes()
    file.write_bytes(whole[: int(kept * len(whole))])
    assert ask(tmp_path) == "True None"
    assert file.read_bytes() == whole


@needs_compiler
def test_a_process_holds_to_what_the_first_one_decided(tmp_path: Path) -> None:
    hold = "from fedbalancer.training.fast import kernels; kernels.follow({'conv': %r}); " + ASK
    assert ask(tmp_path, hold % "no licence") == "False no licence"
    assert not (tmp_path / "kernels").exists(), "what the others cannot have is not even tried"
    caught = f"from fedbalancer.core.errors import FedBalancerError\ntry:\n    {hold % None}\nexcept FedBalancerError as error:"  # noqa: E501
    broken = compiler(tmp_path / "cc", 'case "$*" in *" -E "*) exit 0;; esac; exit 1')
    assert "try again" in ask(tmp_path / "none", f"{caught}\n    print(error)", CC=broken)
    assert ask(tmp_path, hold % None) == "True None"


@needs_compiler
def test_a_cache_that_cannot_be_written_costs_a_compilation_every_time(tmp_path: Path) -> None:
    cc = quick(tmp_path / "cc")
    cache = tmp_path / "cache"
    cache.write_text("a file where a folder should be")
    assert [ask(cache, CC=cc) for _ in range(2)] == ["True None"] * 2
    assert count(cc) == 2


@needs_compiler
@pytest.mark.parametrize("umask", [0o000, 0o002])
def test_only_its_owner_can_read_or_write_the_cache(tmp_path: Path, umask: int) -> None:
    cc = quick(tmp_path / "cc")
    assert ask(tmp_path, f"import os; os.umask({umask}); {ASK}", CC=cc) == "True None"
    folder = tmp_path / "kernels"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}


@needs_compiler
@pytest.mark.parametrize("mode", [0o620, 0o602])
@pytest.mark.parametrize("what", ["folder", "kernel", "checksum"])
def test_what_others_could_have_written_is_made_again_and_then_private(tmp_path: Path, what: str, mode: int) -> None:
    cc = quick(tmp_path / "cc")
    assert ask(tmp_path, CC=cc) == "True None"
    folder = tmp_path / "kernels"
    (kernel,), (checksum,) = folder.glob("*.so"), folder.glob("*.sha256")
    path = {"folder": folder, "kernel": kernel, "checksum": checksum}[what]
    path.chmod(mode | 0o700 if what == "folder" else mode)
    assert [ask(tmp_path, CC=cc) for _ in range(2)] == ["True None"] * 2
    assert count(cc) == 2, "once for the file that is not trusted, and not again"
    assert not any(file.stat().st_mode & 0o077 for file in (folder, kernel, checksum))


@pytest.mark.skipif(sys.platform == "win32", reason="needs shell scripts")
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'error: no licence' >&2; exit 3", "failed with code 3: error: no licence"),
        ('case "$*" in *" -E "*) exit 0;; esac; exit 1', "failed with code 1: no message"),
        (
            'case "$*" in *" -E "*) exit 0;; esac; while [ "$1" != "-o" ]; do shift; done; echo rubbish > "$2"',
            "cannot be loaded",
        ),
    ],
    ids=["broken", "only the preprocessor works", "makes rubbish"],
)
def test_a_broken_compiler_is_no_compiler(script: str, reason: str, tmp_path: Path) -> None:
    answer = ask(tmp_path / "cache", CC=compiler(tmp_path / "cc", script))
    assert answer.startswith("False ")
    assert reason in answer


def test_no_compiler_is_told(tmp_path: Path) -> None:
    assert ask(tmp_path, PATH=str(tmp_path)) == "False no C compiler: cc, gcc, clang not found"
    assert ask(tmp_path, CC="there-is-none") == "False no C compiler: there-is-none not found"


def test_kernels_can_be_switched_off(tmp_path: Path) -> None:
    assert ask(tmp_path, FEDBALANCER_KERNELS="off") == "False switched off by FEDBALANCER_KERNELS"
    assert not (tmp_path / "kernels").exists()
    code = f"from fedbalancer.core.errors import BadSetting\ntry:\n    {ASK}\nexcept BadSetting as error:\n    print(error)"  # noqa: E501
    assert ask(tmp_path, code, FEDBALANCER_KERNELS="no") == "FEDBALANCER_KERNELS is 'no'; it must be on or off"
