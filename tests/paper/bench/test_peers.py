"""benchmarks/peers, as far as it goes without the peers themselves: no test installs them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fedbalancer.data.tasks import femnist, har

FOLDER = Path(__file__).parents[3] / "benchmarks" / "peers"
MODULES = ("work", "prepare", "environments", "engines", "results", "run")


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The scripts as modules. They have everyday names, so they are forgotten afterwards."""
    if not FOLDER.is_dir():
        pytest.skip("benchmarks/peers is part of a checkout only")
    monkeypatch.syspath_prepend(FOLDER)
    yield SimpleNamespace(**{name: __import__(name) for name in MODULES})
    for name in MODULES:
        sys.modules.pop(name, None)


def weights(module: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(module.parameters()).detach()


@pytest.mark.parametrize(("workload", "make"), [("femnist", femnist.make_model), ("har", har.make_model)])
def test_the_models_are_those_of_the_tasks(peers: SimpleNamespace, workload: str, make: type) -> None:
    theirs, ours = peers.work.WORKLOADS[workload].model(), make()
    nn.utils.vector_to_parameters(weights(ours), theirs.parameters())
    x = torch.randn(3, *peers.work.WORKLOADS[workload].shape)
    torch.testing.assert_close(theirs(x), ours(x))


def test_the_larger_models_have_the_described_sizes(peers: SimpleNamespace) -> None:
    models = {name: peers.work.WORKLOADS[name].model() for name in ("resnet18", "bert-lora")}
    counts = {name: (len(weights(each)), int(peers.work.trained_mask(each).sum())) for name, each in models.items()}
    assert counts == {"resnet18": (11_173_962, 11_173_962), "bert-lora": (25_346, 1_090)}
    assert models["bert-lora"](torch.zeros(3, 24, dtype=torch.int64)).shape == (3, 2)


def test_every_epoch_visits_every_sample_of_a_client_once(peers: SimpleNamespace, tmp_path: Path) -> None:
    peers.prepare.prepare(tmp_path, "har", clients=3, epochs=2, rounds=2)
    work = peers.work.Work(tmp_path, "har")
    seen = {tuple(work.order(number, epoch, 1).tolist()) for number in (1, 2) for epoch in (0, 1)}
    assert len(seen) == 4
    assert {tuple(sorted(order)) for order in seen} == {tuple(range(work.sizes[1]))}
    torch.testing.assert_close(weights(work.module()), torch.from_numpy(np.load(tmp_path / "har" / "weights.npy")))


def test_our_engine_and_the_naive_loop_do_the_same_work(tmp_path: Path) -> None:
    if not FOLDER.is_dir():
        pytest.skip("benchmarks/peers is part of a checkout only")
    command = [sys.executable, FOLDER / "run.py", "--workloads", "tiny", "--engines", "naive,plain", "--rounds", "2"]
    done = subprocess.run(
        [*map(str, command), "--repeats", "2", "--json", "--out", str(tmp_path)],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    engines = found["workloads"]["tiny"]["engines"]
    assert engines["plain"]["update_difference"] < 1e-3
    assert engines["plain"]["train_loss"] == pytest.approx(engines["naive"]["train_loss"], rel=1e-4)
    assert [len(engine["repeats"]) for engine in engines.values()] == [2, 2]
    assert json.loads((tmp_path / "peers.json").read_text())["workloads"] == found["workloads"]
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")


def test_other_work_is_noticed(peers: SimpleNamespace, tmp_path: Path) -> None:
    peers.prepare.prepare(tmp_path, "tiny", clients=2, epochs=1, rounds=1)
    work = peers.work.Work(tmp_path, "tiny")
    start = np.load(tmp_path / "tiny" / "weights.npy")
    step = np.linspace(-1, 1, len(start), dtype=np.float32)
    models = {name: tmp_path / f"{name}.npy" for name in ("naive", "flower", "fast")}
    for name, vector in {"naive": start + step, "flower": start + 1.0001 * step, "fast": start + 0.9 * step}.items():
        np.save(models[name], vector)
    results = peers.results.Results()
    results.compare_updates(work, "tiny", models)
    assert [text.split(":")[0] for text in results.unlike()] == ["fast on tiny"]
    results.compare_losses(work, "tiny", models)
    assert [text.split(": ")[1].split()[1] for text in results.unlike()] == ["update", "training"]


def test_ratios_are_to_the_better_peer_in_the_same_repeat(peers: SimpleNamespace) -> None:
    results = peers.results.Results()
    repeats = {"flower": (10, 40, 10), "pfl-threads": (20, 5, 20), "pfl-processes": (1, 1, 1), "fast": (40, 30, 60)}
    for engine, rates in repeats.items():
        for rate in rates:
            results.add("har", engine, rate)
    assert results.best_peer("har") == "pfl-threads"
    assert results.ratio("har", "fast") == 3  # of 2, 6 and 3


@pytest.mark.parametrize("wrong", [["--engines", "flour"], ["--workloads", ""], ["--repeats", "0"]])
def test_a_mistake_is_told_before_anything_is_installed(peers: SimpleNamespace, wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        peers.run.options(wrong)
    assert caught.value.code == 2
