"""The seconds of a batch depend on the model and on the samples of the batch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments import tinytask
from torch import nn

import fedbalancer as fb
from fedbalancer.core.cost import FIXED_SHARE, PUBLISHED
from fedbalancer.core.errors import BadData, BadSetting, FedBalancerError, UnknownName
from fedbalancer.data import Task
from fedbalancer.experiments.clock import batch_cost, latency_row, latency_scale
from fedbalancer.experiments.simulation import build, resolve_spec
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.simulation.devices import LATENCY_MS
from fedbalancer.store.contents import read_manifest

OWN = {"slow": (40.0, 1.0), "mid": (20.0, 1.0), "fast": (10.0, 0.5)}


def batch_s(task: Task, **options: Any) -> float:
    """The mean seconds per batch that clients expect before training."""
    spec = RunSpec(task=task, timing_only=True, **{"method": "fedavg+1t", **options})
    return float(build(spec, task).engine.ledger.batch_s.mean())


def clock_s(task: Task | str, **options: Any) -> float:
    values = {"method": "fedavg+wfa", "rounds": 3, "timing_only": True, **options}
    return float(fb.run(task, **values).rounds["end_s"][-1])


def model(width: int) -> Any:
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))


def sized(samples: int, **changes: Any) -> Task:
    return tinytask.load(clients={f"c{n}": tinytask.samples(samples, n) for n in range(8)}, **changes)


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_built_in_tasks_keep_the_published_seconds(scale: str) -> None:
    task = fb.load_task("synthetic", scale=scale)
    settings = resolve_spec(RunSpec(task=task), task)[0]
    assert latency_row(task, latency_scale(task, settings)) == LATENCY_MS["femnist"]


def test_a_larger_model_takes_longer() -> None:
    """A linear model and one of four million parameters cost the same before."""
    linear, large = (tinytask.load(latency=None, model=lambda w=w: model(w)) for w in (1, 2000))  # type: ignore[misc]
    assert batch_s(large) > 1.5 * batch_s(linear)


def test_a_larger_batch_is_no_free_lunch() -> None:
    """Six times the samples of a batch cost nearly six times the seconds, so the epoch takes as long as before."""
    for task in (sized(120), sized(120, latency=None), sized(120, latency=OWN)):
        whole = [clock_s(task, settings={"batch_size": size}) for size in (10, 60)]
        assert 0.85 < whole[1] / whole[0] <= 1


def test_a_batch_size_in_brackets_and_of_the_task_scale_too() -> None:
    task = sized(120)
    by_setting = clock_s(task, settings={"batch_size": 60})
    assert clock_s(task, method="fedavg+wfa[batch_size=60]") == by_setting
    assert clock_s(replace(task, batch_size=60)) == by_setting


def test_larger_batches_no_longer_win_on_synthetic() -> None:
    """It was six times as fast with batches of 100."""
    usual, large = (clock_s("synthetic", method=f"fedavg+wfa[batch_size={size}]", rounds=4) for size in (10, 100))
    assert usual / large < 1.2


def test_a_client_with_few_samples_does_not_pay_for_a_whole_large_batch() -> None:
    few, many = sized(12), sized(100)
    large = {"settings": {"batch_size": 100}}
    assert batch_s(few, **large) < 0.3 * batch_s(many, **large)
    assert 0.9 * 0.95 < clock_s(few, **large) / clock_s(few) <= 1


def test_epochs_without_their_short_batch_pay_for_whole_ones() -> None:
    """Of 110 samples, one batch of 100 is trained; with the short one it is two, of 55 on average."""
    task = sized(110)
    kept, dropped = (batch_s(task, settings={"batch_size": 100, "drop_last": drop}) for drop in (False, True))
    assert kept / dropped == pytest.approx((FIXED_SHARE + 0.9 * 5.5) / (FIXED_SHARE + 0.9 * 10))
    assert batch_s(task, settings={"batch_size": 100}, method="oort") == dropped


@pytest.mark.parametrize("method", ["fedbalancer", "oort", "fedavg+1t+forwardpass", "refl", "canter"])
def test_every_kind_of_method_runs_with_other_batches(method: str) -> None:
    settings = {"batch_size": 25, "latency": "flops"}
    trained, timed = (
        fb.run(tinytask.load(), method, rounds=4, settings=settings, timing_only=timing) for timing in (False, True)
    )
    assert len(trained.rounds) == len(timed.rounds) == 4
    assert (trained.rounds["end_s"].diff().drop_nulls() > 0).all()
    assert trained.rounds["completed"].sum() > 0


def test_own_latencies_belong_to_the_task_s_batch_size_or_to_the_stated_one() -> None:
    task = sized(40, latency=OWN, batch_size=20)
    settings = resolve_spec(RunSpec(task=task), task)[0]
    assert latency_row(task, latency_scale(task, settings)) == OWN
    at_five = replace(task, latency_batch_size=5)
    assert latency_scale(at_five, settings).factor == pytest.approx(FIXED_SHARE + 4 * (1 - FIXED_SHARE))


def test_a_row_s_name_stands_for_its_model_at_its_batch_size() -> None:
    task = tinytask.load(latency="shakespeare")
    settings = resolve_spec(RunSpec(task=task), task)[0]
    scale = latency_scale(task, settings)
    assert scale.factor == pytest.approx(FIXED_SHARE + (1 - FIXED_SHARE) * 10 / 100)
    assert batch_cost(task, settings) == replace(PUBLISHED["shakespeare"], batch_size=10)
    whole = replace(task, latency_batch_size=10)
    assert latency_scale(whole, settings).factor == 1.0
    assert batch_cost(whole, settings).train_flops == 10 * PUBLISHED["shakespeare"].train_flops


def test_the_setting_overrides_the_task_s_own_latencies() -> None:
    """It was ignored without a word."""
    task = tinytask.load(latency=OWN)
    rows = [batch_s(task), *(batch_s(task, settings={"latency": name}) for name in ("custom", "har", "flops"))]
    assert rows[0] == rows[1] > rows[3]
    assert rows[2] > rows[1]


def test_a_cost_in_flops_exists_for_measured_tasks_too() -> None:
    task = tinytask.load(latency=OWN)
    settings = resolve_spec(RunSpec(task=task), task)[0]
    assert (batch_cost(task, settings).train_flops, batch_cost(task, settings).batch_size) == (32, 10)


def test_forward_passes_of_estimated_models_cost_their_counted_share() -> None:
    task = tinytask.load(latency=None)
    settings = {"latency": "flops"}
    assert build(RunSpec(task=task, settings=settings), task).server.setup.forward_epochs == 0.5  # no inputs' gradient
    large = tinytask.load(latency=None, model=lambda: model(50))
    share = build(RunSpec(task=large, settings=settings), large).server.setup.forward_epochs
    assert 0.33 < share < 0.36
    published = replace(large, latency="har")
    assert build(RunSpec(task=published), published).server.setup.forward_epochs == 0.5
    method = "fedbalancer[forward_pass=every,summary=histogram(noise_multiplier=1,clip=5)]"
    counted_s, published_s = (
        fb.run(large, method, rounds=1, settings={"latency": row, "w": 1}).clients["forward_s"].sum()
        for row in ("flops", "femnist")
    )
    factor = latency_scale(large, resolve_spec(RunSpec(task=large), large)[0]).factor
    assert counted_s / published_s == pytest.approx(factor * share / 0.5)


def test_the_manifest_says_what_the_clock_stands_for(tmp_path: Path) -> None:
    def clock(name: str, task: Task | str, **options: Any) -> dict[str, Any]:
        fb.run(task, "fedavg+1t", rounds=1, timing_only=True, out=tmp_path / name, **options)
        content: dict[str, Any] = read_manifest(tmp_path / name)["clock"]
        return content

    small = clock("small", "synthetic")
    assert (small["basis"], small["row"], small["factor"], small["forward_epochs"]) == (
        "published",
        "femnist",
        1.0,
        0.5,
    )
    assert small["cost"] == small["reference"]
    counted = clock("counted", tinytask.load(latency="flops"))
    assert (counted["basis"], counted["cost"]["train_flops"], counted["cost"]["forward_flops"]) == ("estimated", 32, 16)
    assert counted["reference"]["train_flops"] == PUBLISHED["femnist"].train_flops
    assert clock("own", tinytask.load(latency=OWN))["basis"] == "measured"
    assert clock("large", "synthetic", settings={"batch_size": 100})["factor"] == pytest.approx(9.1)


def test_a_run_resumes_with_the_factor_that_it_began_with(tmp_path: Path) -> None:
    """Also if another version of torch would count otherwise; a run of an older version had no factor."""
    task = tinytask.load(latency="flops")
    whole = fb.run(task, "fedavg+1t", rounds=4, out=tmp_path / "whole")
    seen: list[Any] = []
    fb.run(task, "fedavg+1t", rounds=4, out=tmp_path / "part", stopped=lambda: bool(seen), on_round=seen.append)
    assert read_manifest(tmp_path / "part")["status"] == "stopped"
    resumed = fb.resume(tmp_path / "part", task=replace(task, latency="femnist"))
    assert resumed.rounds["end_s"].to_list() == whole.rounds["end_s"].to_list()


def test_a_run_of_an_older_version_resumes_without_a_factor(tmp_path: Path) -> None:
    options: dict[str, Any] = {"method": "fedavg+1t", "rounds": 3, "settings": {"batch_size": 25}}
    older = tinytask.load(latency="femnist", latency_batch_size=25)
    whole = fb.run(older, **options)
    seen: list[Any] = []
    fb.run(older, **options, out=tmp_path / "old", stopped=lambda: bool(seen), on_round=seen.append)
    manifest = tmp_path / "old" / "manifest.json"
    content = {key: value for key, value in json.loads(manifest.read_text()).items() if key not in ("clock", "sha256")}
    manifest.write_text(json.dumps({**content, "clock": {"basis": "estimated"}}))
    with pytest.raises(FedBalancerError, match="invalid clock"):
        fb.resume(tmp_path / "old", task=older)
    manifest.write_text(json.dumps(content))
    resumed = fb.resume(tmp_path / "old", task=tinytask.load(latency=None))
    assert resumed.rounds["end_s"].to_list() == whole.rounds["end_s"].to_list()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"latency": "har", "latency_batch_size": 0}, "latency_batch_size = 0 must be a whole number"),
        ({"latency": "har", "latency_batch_size": 2.5}, "latency_batch_size = 2.5 must be a whole number"),
        ({"latency": None, "latency_batch_size": 10}, "latency_batch_size = 10 needs a latency"),
        ({"latency": "flops", "latency_batch_size": 10}, "latency_batch_size = 10 needs a latency"),
    ],
)
def test_a_batch_size_without_a_measurement_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(BadData, match=words):
        tinytask.load(**values)


def test_latencies_that_cannot_be_are_refused() -> None:
    for latency, error, words in (
        ("tablet", UnknownName, "latency row"), ("custom", BadSetting, "no measured times"),
        ({"slow": (1, 1)}, BadSetting, "must map slow, mid and fast"),
        ({**OWN, "slow": (0, 1)}, BadSetting, "latency of slow"),
    ):  # fmt: skip
        task = tinytask.load(latency=latency)
        with pytest.raises(error, match=words):
            build(RunSpec(task=task, timing_only=True), task)


def test_a_task_file_states_the_batch_size_of_its_latencies(tmp_path: Path) -> None:
    x, y = tinytask.samples(60, 0)
    np.savez(tmp_path / "tiny.npz", x=x, y=y, who=np.arange(60) % 6)
    (tmp_path / "tiny.toml").write_text(
        '[data]\nkind = "npz"\npath = "tiny.npz"\nuser = "who"\n[model]\nname = "mlp"\n[settings]\n'
        "latency = {slow = [40, 1], mid = [20, 1], fast = [10, 0.5]}\nlatency_batch_size = 5\n"
    )
    fb.run(str(tmp_path / "tiny.toml"), "fedavg+1t", rounds=1, timing_only=True, out=tmp_path / "run")
    clock = read_manifest(tmp_path / "run")["clock"]
    assert (clock["basis"], clock["factor"]) == ("measured", pytest.approx(1.9))
