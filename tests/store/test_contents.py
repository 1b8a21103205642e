"""A run folder notices that its files are not what was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbalancer.core.errors import RunFolderError
from fedbalancer.experiments.execute import resume, run
from fedbalancer.reporting.results import load_run
from fedbalancer.store.contents import SEALED, read_manifest


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("done") / "r"
    run("synthetic", "fedbalancer[summary=histogram]", rounds=3, users=6, out=out)
    return out


def changed(out: Path, *, seal: bool = False, **spec: Any) -> None:
    """Edit the manifest by hand, with or without its checksum."""
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["spec"].update(spec)
    if not seal:
        del manifest["sha256"]
    (out / "manifest.json").write_text(json.dumps(manifest))


def copy_of(done: Path, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(done, tmp_path / "copy"))


def test_a_changed_manifest_is_refused_until_it_is_said_to_be_meant(done: Path, tmp_path: Path) -> None:
    out = copy_of(done, tmp_path)
    changed(out, seal=True, rounds=4)
    with pytest.raises(RunFolderError, match=r"changed after it was written; .* delete its \"sha256\""):
        resume(out)
    assert "manifest.json was changed" in load_run(out).why
    changed(out, rounds=4)
    assert len(resume(out).rounds) == 4


def test_another_seed_in_the_manifest_does_not_pass_for_the_run_of_that_seed(done: Path, tmp_path: Path) -> None:
    out = copy_of(done, tmp_path)
    changed(out, seed=4)
    with pytest.raises(RunFolderError, match="has seed = 4, but its checkpoint has 0"):
        resume(out)


@pytest.mark.parametrize("name", SEALED)
def test_no_flipped_bit_of_a_result_is_reported_as_measured(done: Path, tmp_path: Path, name: str) -> None:
    out = copy_of(done, tmp_path)
    assert load_run(out).curve.status == "done"
    data = bytearray((out / name).read_bytes())
    for place in np.random.default_rng(0).integers(0, 8 * len(data), 40):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << (place % 8)
        (out / name).write_bytes(flipped)
        found = load_run(out)
        assert found.curve.status == "damaged"
        assert name in found.why


def test_a_run_that_goes_on_and_ends_again_matches_its_checksums(done: Path, tmp_path: Path) -> None:
    out = copy_of(done, tmp_path)
    assert set(read_manifest(out)["files"]) == set(SEALED)
    resume(out, budget_s=1e3)
    assert (load_run(out).curve.status, load_run(out).why) == ("done", "")
