import json
from pathlib import Path

from fedbalancer.paper.bench.results import BenchResult, TaskSpeed, choose_clients
from fedbalancer.paper.bench.workloads import SHAPES

SPEED = TaskSpeed(
    "har",
    parameters=7,
    batch_size=10,
    clients=4,
    flop_per_sample=2e6,
    layers=("0 (Linear): torch",),
    rates={
        "naive": [100.0, 50.0, 100.0],
        "plain inline": [90.0, 90.0, 90.0],
        "fast pool of 2": [300.0, 250.0, 100.0],
        "limit": [1000.0, 1000.0, 1000.0],
    },
)
RESULT = BenchResult({"cores": 2}, (SPEED,), {"fedbalancer": 12345.0}, {"fast inline": 0.25})


def test_ratios_are_medians_of_ratios_within_a_repeat() -> None:
    found = RESULT.to_json()["tasks"]["har"]
    assert found["samples_per_s"] == 250
    assert found["naive_samples_per_s"] == 100
    assert found["ratio_to_naive"] == 3  # of 3, 5 and 1: a slow spell of the machine counts once
    assert found["limit_samples_per_s"] == 1000
    assert found["ratio_to_limit"] == 0.25
    assert found["path"] == "fast pool of 2"


def test_everything_is_kept(tmp_path: Path) -> None:
    RESULT.write(tmp_path / "new" / "folder")
    kept = json.loads((tmp_path / "new" / "folder" / "bench.json").read_text())
    assert kept == json.loads(json.dumps(RESULT.to_json()))
    assert (tmp_path / "new" / "folder" / "bench.png").read_bytes().startswith(b"\x89PNG")
    lines = (tmp_path / "new" / "folder" / "bench.md").read_text().splitlines()
    assert lines[2] == "| har | 100 | 90 | 250 | 1,000 | 3.00 | 25% |"
    assert {line.count("|") for line in lines[:3]} == {8}
    assert "fedbalancer 12,345" in "\n".join(lines)


def test_every_worker_gets_as_many_clients() -> None:
    assert choose_clients("watch", seconds=1e-9, workers=3) == 3
    many = choose_clients("watch", seconds=0.2, workers=3)
    assert many % 3 == 0
    assert many * SHAPES["watch"].samples <= 60_000
