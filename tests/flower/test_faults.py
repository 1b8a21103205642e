"""Faults committed by real processes. The short set here; the whole table by `make soak`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower.faults.bed import Bed
from flower.faults.checks import Verdict
from flower.faults.table import FEDERATIONS, begin, judged, resumed, scripted

pytestmark = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are found by /proc")


def told(found: list[Verdict]) -> str:
    return "\n".join(f"{v.fault} of {v.client} in round {v.round}: {'; '.join(v.wrong)}" for v in found if v.wrong)


@pytest.mark.timeout(600)
def test_bad_replies_a_killed_client_and_a_killed_server(tmp_path: Path) -> None:
    with Bed(tmp_path / "bed", 3, 20.0, 4) as bed:
        begin(bed, {"bad0": "nan,garbage,raise", "bad1": "key,kill-during"})
        killed = resumed(bed, bed.kill_server_app, 1.0)
        bed.finish()
        found = [*scripted(bed), judged(bed, "server-app", "", killed)]
    assert "server-app" in {verdict.fault for verdict in found}
    assert len(found) > 1, "no client has committed its fault in time"
    assert not told(found), told(found)


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", FEDERATIONS)
def test_the_whole_table(name: str, tmp_path: Path) -> None:
    found = FEDERATIONS[name](tmp_path / "bed", int(os.environ.get("REPEATS", "1")))
    assert found
    assert not told(found), told(found)
