"""Manifests of submissions: read, checked and listed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedbalancer.core.errors import FedBalancerError
from fedbalancer.experiments.benchmark.submission import add_submission, read_submission, read_submissions
from fedbalancer.experiments.benchmark.tuning import trial_methods

POLICY = """
from dataclasses import dataclass
from fedbalancer.core.fields import Share
from fedbalancer.server.deadline import WaitForShare

@dataclass(frozen=True)
class Median(WaitForShare):
    \"\"\"Waits for half.

    Args:
        share: The share.
    \"\"\"
    share: Share = 0.5
"""
MANIFEST = """
owner = "Ann's lab"
title = "closes at the median"
suite = "tta-1"
method = "fedavg+1t[deadline=ann_policies:Median]"
[space]
own = ["deadline.share=.3..0.7", "epochs=1,2"]
"""


@pytest.fixture
def manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "ann_policies.py").write_text(POLICY)
    (tmp_path / "mine.toml").write_text(MANIFEST)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "mine.toml"
    sys.modules.pop("ann_policies", None)


def test_a_manifest_names_the_method_its_space_and_the_hash_of_its_code(manifest: Path) -> None:
    submission = read_submission(manifest)
    assert submission.method == "fedavg+1t[deadline=ann_policies:Median]"
    names = trial_methods(submission.method, 3, 0.1, submission.space)
    assert names[0] == submission.method
    assert names[1] == "fedavg+1t[epochs=2,learning_rate=.1,deadline.share=.5,deadline=ann_policies:Median]"
    before = submission.packages["ann_policies"]
    (manifest.parent / "ann_policies.py").write_text(POLICY + "\n")
    assert read_submission(manifest).packages["ann_policies"] != before


def test_a_submission_is_listed_once(manifest: Path, tmp_path: Path) -> None:
    submission = read_submission(manifest)
    add_submission(tmp_path / "results", submission)
    add_submission(tmp_path / "results", submission)
    (entry,) = read_submissions(tmp_path / "results")
    assert entry["space"]["own"] == ["deadline.share=.3..0.7", "epochs=1,2"]
    assert entry["packages"] == submission.packages


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('owner = "Ann\'s lab"', "", "owner in .* must be printable text"),
        ('suite = "tta-1"', 'suite = "tta-9"', "unknown suite"),
        ('suite = "tta-1"', 'sweet = "tta-1"', "unknown key 'sweet'"),
        ("fedavg+1t[deadline=ann_policies:Median]", "oort", "is built in"),
        ("ann_policies:Median", "ann_policies:Mean", "cannot|has no attribute"),
        ('"epochs=1,2"', '"epochs=1,2", "mu=0,1", "w=1,2"', "has 4 hyper-parameters"),
        ('own = ["deadline.share=.3..0.7", "epochs=1,2"]', "own = 3", "space in .* must have own"),
        ("deadline.share=.3..0.7", "deadline.share=.3..7", "share = 7"),
        ("owner", "owner = ", "not valid TOML"),
    ],
)
def test_mistakes_in_a_manifest_are_named(manifest: Path, old: str, new: str, message: str) -> None:
    assert old in MANIFEST
    manifest.write_text(MANIFEST.replace(old, new, 1))
    with pytest.raises(FedBalancerError, match=message):
        read_submission(manifest)


def test_a_damaged_list_is_named(tmp_path: Path) -> None:
    assert read_submissions(tmp_path) == []
    (tmp_path / "submissions.json").write_text("[]")
    with pytest.raises(FedBalancerError, match="is damaged"):
        read_submissions(tmp_path)
