"""All processes of a run compute with the same kernels, and its manifest says with which."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from training.fast.test_kernels import COMPILER, compiler, needs_compiler

RUN = """
import sys
from fedbalancer.experiments.execute import run
if __name__ == "__main__":
    run("synthetic", "fedavg+1t", rounds=2, users=6, out=sys.argv[1], workers=2, executor="pool")
"""


def model(out: Path, script: Path, **environment: str) -> bytes:
    kept = {name: value for name, value in os.environ.items() if name not in ("CC", "FEDBALANCER_KERNELS")}
    subprocess.run([sys.executable, script, out], env=kept | environment, check=True, timeout=200)
    return (out / "model.safetensors").read_bytes()


@needs_compiler
def test_a_compiler_that_fails_now_and_then_gives_no_mixture(tmp_path: Path) -> None:
    """It fails in the first process, and would work in its workers."""
    script, calls = tmp_path / "go.py", tmp_path / "calls"
    script.write_text(RUN)
    flaky = compiler(
        tmp_path / "cc",
        f'case "$*" in *" -E "*) exec {COMPILER} "$@";; esac\n'
        f'echo call >> {calls}\n[ "$(wc -l < {calls})" -gt 5 ] || exit 1\nexec {COMPILER} "$@"',
    )
    mixed = model(tmp_path / "mixed", script, CC=flaky, FEDBALANCER_CACHE=str(tmp_path / "cache"))
    assert calls.read_text().count("call") == 5, "no worker tries what the first process could not have"
    without = model(tmp_path / "without", script, FEDBALANCER_KERNELS="off")
    assert mixed == without
    found = json.loads((tmp_path / "mixed" / "manifest.json").read_text())["kernels"]
    assert all("torch (" in found[name] for name in ("conv", "dense", "row"))
