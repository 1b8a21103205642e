"""Nothing is unpickled from disk or network: a trap in the interpreter itself, which none of our code can go around."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from experiments import tinytask
from trap import caught  # noqa: F401 - a fixture

import fedbalancer as fb
from fedbalancer.data import Prepared, load_or_prepare
from fedbalancer.reporting import write_report


def test_the_trap_works(caught: list[str]) -> None:  # noqa: F811
    import pickle

    pickle.loads(pickle.dumps(Path))
    assert caught


def test_runs_resumes_and_reports_unpickle_nothing(
    tmp_path: Path,
    folders: tuple[Path, Path],
    caught: list[str],  # noqa: F811
) -> None:
    out = tmp_path / "run"
    fb.run(tinytask.load(), "fedbalancer", rounds=2, out=out)
    fb.resume(out, task=tinytask.load(), budget_s=500.0)
    write_report(out)
    for _ in range(2):
        load_or_prepare("t", {"k": 1}, lambda: Prepared({"x": np.arange(9)}, {"n": 1}))
    np.savez(tmp_path / "d.npz", x=np.eye(8, 3), y=np.arange(8) % 2, who=np.array(list("aabbccdd")))
    (tmp_path / "t.toml").write_text(
        '[data]\nkind = "npz"\npath = "d.npz"\nuser = "who"\ntest_share = 0.3\n[model]\nname = "mlp"\n'
    )
    fb.load_task(str(tmp_path / "t.toml"))
    assert caught == []


def test_a_file_with_a_pickle_in_it_is_refused(tmp_path: Path, caught: list[str]) -> None:  # noqa: F811
    np.savez(tmp_path / "d.npz", x=np.array([[Path("x")]] * 8, dtype=object), y=np.arange(8) % 2, who=list("aabbccdd"))
    text = '[data]\nkind = "npz"\npath = "d.npz"\nuser = "who"\n[model]\nname = "mlp"\n'
    (tmp_path / "t.toml").write_text(text)
    caught.clear()
    with pytest.raises(fb.FedBalancerError):
        fb.load_task(str(tmp_path / "t.toml"))
    assert caught == []
