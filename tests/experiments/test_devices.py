"""Runs on devices of the user: fleets, files, tables and device models, in this process, in others, and resumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fedbalancer as fb
from fedbalancer.core.cost import PUBLISHED
from fedbalancer.core.errors import BadData, BadSetting, RunFolderError
from fedbalancer.core.types import FloatArray
from fedbalancer.experiments.clock import fleet_batch_s, latency_scale
from fedbalancer.experiments.plan import ComparisonPlan
from fedbalancer.experiments.run_warnings import warnings_for_run
from fedbalancer.experiments.simulation import resolve_spec
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.experiments.sweep.plan import SweepPlan
from fedbalancer.simulation.devices import DeviceDraw
from fedbalancer.store import read_manifest

OPTIONS: dict[str, Any] = {"users": 12, "settings": {"clients_per_round": 4, "checkpoint_s": 0}}


def equal_devices(batch_s: float = 2.0, **more: Any) -> fb.Fleet:
    return fb.Fleet(
        [fb.Device(id=f"d{at}", batch_s=batch_s + at, down_mbit_s=8, up_mbit_s=8, **more) for at in range(3)]
    )


def batch_seconds(result: fb.RunResult) -> set[float]:
    """The seconds per batch of all clients that trained all of their epochs."""
    rows = result.clients.filter(pl.col("train_s") > 0)
    batches = rows["epochs"] * (rows["samples"] / 10).ceil()
    return set((rows["train_s"] / batches).round(9))


class Steady:
    """A device model of the user: every batch takes as long as its name says."""

    def __init__(self, batch_s: float = 1.0) -> None:
        self.batch_s = batch_s

    def expected_network_s(self, client: str, down_bytes: int, up_bytes: int) -> float:
        return 2.0

    def sample_batch_s(self, client: str, count: int) -> FloatArray:
        return np.full(count, self.batch_s)

    def draw(self, client: str, round_number: int, down_bytes: int, up_bytes: int) -> DeviceDraw:
        return DeviceDraw(self.batch_s, 1.0, 1.0)


class AtNight(Steady):
    """A device model that is an availability too: nobody is there in the first hour."""

    def is_available(self, client: str, at_s: float) -> bool:
        return at_s > 3600

    def elapsed_s(self, client: str, start_s: float, busy_s: float) -> float:
        return max(0.0, 3600 - start_s) + busy_s


def test_the_paper_has_the_same_bytes_as_the_default(tmp_path: Path) -> None:
    runs = [
        fb.run("synthetic", "fedbalancer", rounds=3, out=tmp_path / name, devices=devices, **OPTIONS)
        for name, devices in (("default", None), ("fleet", fb.Fleet.paper()), ("name", "paper"))
    ]
    for other in runs[1:]:
        assert other.rounds.equals(runs[0].rounds)
        assert other.clients.equals(runs[0].clients)
        assert all(np.array_equal(*pair) for pair in zip(other.weights, runs[0].weights, strict=True))
        assert other.population is not None
        assert runs[0].population is not None
        assert other.population.equals(runs[0].population)


def test_a_fleet_sets_the_seconds_of_a_run() -> None:
    fleet = fb.Fleet([fb.Device(id="x", batch_s=3.0, device_class="tablet", down_mbit_s=8, up_mbit_s=8)])
    result = fb.run("synthetic", "fedavg+wfa", rounds=2, devices=fleet, **OPTIONS)
    assert batch_seconds(result) == {3.0}
    assert result.population is not None
    assert set(result.population["device"]) == {"tablet"}


def test_clients_are_selected_only_while_online() -> None:
    names = sorted(fb.load_task("synthetic", users=12).sizes)
    fleet = fb.Fleet(
        [fb.Device(id=name, online=[(0, 3600)] if at < 6 else [(7200, 9000)]) for at, name in enumerate(names)]
    )
    result = fb.run("synthetic", "fedavg+1t", rounds=2, timing_only=True, devices=fleet, **OPTIONS)
    assert set(result.clients["client"]) <= set(names[:6])


def interrupted(out: Path, devices: Any) -> fb.RunResult:
    rounds = iter((False, False, False, True, True, True, True))
    stopped = fb.run(
        "synthetic", "fedbalancer", rounds=4, out=out, devices=devices, stopped=lambda: next(rounds), **OPTIONS
    )
    assert stopped.status == "stopped"
    assert 0 < len(stopped.rounds) < 4
    return stopped


@pytest.mark.parametrize("kind", ["file", "object", "synthetic"])
def test_a_run_on_a_fleet_resumes_with_the_same_bytes(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.csv"
    equal_devices(std_s=0.3).to_csv(path)
    devices = {"file": str(path), "object": equal_devices(std_s=0.3), "synthetic": fb.Fleet.synthetic(20)}[kind]
    whole = fb.run("synthetic", "fedbalancer", rounds=4, devices=devices, **OPTIONS)
    interrupted(tmp_path / "run", devices)
    resumed = fb.resume(tmp_path / "run")
    assert resumed.rounds.equals(whole.rounds)
    assert all(np.array_equal(*pair) for pair in zip(resumed.weights, whole.weights, strict=True))
    recorded = read_manifest(tmp_path / "run")["spec"]["devices"]
    assert len(recorded["sha256"]) == 64
    assert recorded.get("file") == (str(path) if kind == "file" else None)


def test_a_run_does_not_resume_on_a_changed_fleet(tmp_path: Path) -> None:
    path = tmp_path / "fleet.csv"
    equal_devices().to_csv(path)
    interrupted(tmp_path / "run", path)
    with pytest.raises(RunFolderError, match="devices differ"):
        fb.resume(tmp_path / "run", devices=equal_devices(5.0))
    equal_devices(3.0).to_csv(path)
    with pytest.raises(BadData, match="has changed"):
        fb.resume(tmp_path / "run")
    path.unlink()
    with pytest.raises(fb.FedBalancerError, match="there is no fleet file"):
        fb.resume(tmp_path / "run")


def test_a_device_model_of_the_user_and_a_function_that_makes_one() -> None:
    def make(clients: Sequence[str], seed: int) -> Steady:
        assert len(clients) == 12
        return Steady(1.5 + seed)

    run = fb.run("synthetic", "fedavg+wfa", rounds=1, timing_only=True, devices=Steady(), **OPTIONS)
    made = fb.run("synthetic", "fedavg+wfa", 1, rounds=1, timing_only=True, devices=make, **OPTIONS)
    assert (batch_seconds(run), batch_seconds(made)) == ({1.0}, {2.5})
    night = fb.run("synthetic", "fedavg+wfa", rounds=1, timing_only=True, devices=AtNight(), **OPTIONS)
    assert night.rounds["selected"].to_list() == [0]
    with pytest.raises(BadSetting, match="the function returned 5"):
        fb.run("synthetic", rounds=1, timing_only=True, devices=lambda clients, seed: 5, **OPTIONS)


def test_a_run_on_a_device_model_resumes_only_with_it(tmp_path: Path) -> None:
    whole = fb.run("synthetic", "fedbalancer", rounds=4, devices=Steady(), **OPTIONS)
    interrupted(tmp_path / "run", Steady())
    with pytest.raises(RunFolderError, match=r"device model of the user \(Steady\).*devices="):
        fb.resume(tmp_path / "run")
    assert fb.resume(tmp_path / "run", devices=Steady()).rounds.equals(whole.rounds)


def test_resume_refuses_devices_that_the_run_did_not_have(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", None)
    with pytest.raises(RunFolderError, match="started without devices"):
        fb.resume(tmp_path / "run", devices=Steady())


def compared(out: Path, devices: Any) -> None:
    """Compare in another process, and check that the run there had the devices."""
    table = fb.compare(
        "synthetic", ["fedavg+1t"], seeds=1, rounds=2, extend=1, jobs=1, devices=devices, out=out, **OPTIONS
    )
    assert not table.notes
    alone = fb.run("synthetic", "fedavg+1t", rounds=2, timing_only=True, devices=devices, **OPTIONS)
    there = fb.resume(out / "fedavg+1t" / "seed-0", devices=devices)
    assert there.clients["download_s"].equals(alone.clients["download_s"])
    assert there.clients["train_s"].equals(alone.clients["train_s"])


def test_the_processes_of_a_comparison_get_a_device_model(tmp_path: Path) -> None:
    class Local:  # the processes cannot import this file
        def expected_network_s(self, client: str, down_bytes: int, up_bytes: int) -> float:
            return 2.0

        def sample_batch_s(self, client: str, count: int) -> FloatArray:
            return np.full(count, 1.0)

        def draw(self, client: str, round_number: int, down_bytes: int, up_bytes: int) -> DeviceDraw:
            return DeviceDraw(1.0, 1.0, 1.0)

    compared(tmp_path / "c", Local())
    with pytest.raises(fb.FedBalancerError, match="from Python"):
        ComparisonPlan.read(tmp_path / "c")


def test_the_processes_of_a_comparison_get_a_fleet_and_it_can_resume(tmp_path: Path) -> None:
    path = tmp_path / "fleet.csv"
    equal_devices().to_csv(path)
    compared(tmp_path / "c", path)
    assert ComparisonPlan.read(tmp_path / "c").base.devices == equal_devices()
    other = tmp_path / "copy.csv"
    equal_devices().to_csv(other)
    fb.compare(methods=[], add=tmp_path / "c", devices=other)  # the same devices in another place
    with pytest.raises(BadSetting, match="devices is"):
        fb.compare(methods=[], add=tmp_path / "c", devices=equal_devices(9.0))
    equal_devices(3.0).to_csv(other)
    with pytest.raises(BadData, match="has changed"):
        ComparisonPlan.read(tmp_path / "c")


@pytest.mark.parametrize(
    ("devices", "settings", "message"),
    [
        (equal_devices(), {"device_spread": 2}, "device_spread = 2 changes the paper's phones"),
        (Steady(), {"network_floor": 0.1}, "network_floor = 0.1 does not apply to your own device model"),
        (equal_devices(online=[(0, 5)]), {"availability": "x.json"}, "online intervals too"),
        (AtNight(), {"availability": "x.json"}, "online intervals too"),
        (lambda clients, seed: AtNight(), {"availability": "x.json"}, "online intervals too"),
    ],
)
def test_settings_that_do_not_apply_are_refused(devices: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        fb.run("synthetic", rounds=1, timing_only=True, devices=devices, users=12, settings=settings)


def test_a_task_has_devices_unless_the_run_names_others(tmp_path: Path) -> None:
    task = replace(fb.load_task("synthetic", users=12), devices=equal_devices())
    run = fb.run(task, "fedavg+wfa", rounds=1, timing_only=True, out=tmp_path / "run")
    assert batch_seconds(run) <= {2.0, 3.0, 4.0}
    assert read_manifest(tmp_path / "run")["spec"]["devices"]["kind"] == "list"
    other = fb.run(task, "fedavg+wfa", rounds=1, timing_only=True, devices=Steady())
    assert batch_seconds(other) == {1.0}


def test_an_implausible_fleet_is_a_warning() -> None:
    spec = RunSpec(task="synthetic", users=12, devices=equal_devices(900.0))
    assert any("look like milliseconds" in text for text in warnings_for_run(spec, spec.load_task()))
    nights = RunSpec(task="synthetic", users=12, devices=equal_devices(online=[(80_000, 86_000)]))
    assert any("0 of 12 clients are available" in text for text in warnings_for_run(nights, nights.load_task()))


@pytest.mark.parametrize(("known", "warned"), [(0, False), (5, True), (12, False)])
def test_clients_without_a_device_of_their_id_are_a_warning_if_others_have_one(known: int, warned: bool) -> None:
    clients = list(fb.load_task("synthetic", users=12).sizes)
    fleet = fb.Fleet([fb.Device(id="other"), *(fb.Device(id=client) for client in clients[:known])])
    spec = RunSpec(task="synthetic", users=12, devices=fleet)
    texts = [text for text in warnings_for_run(spec, spec.load_task()) if "no device with their id" in text]
    assert bool(texts) == warned
    assert all(text.startswith("7 of 12 clients") and repr(clients[5]) in text for text in texts)


def batch_s_of(device: fb.Device, task: fb.Task, **settings: Any) -> float:
    """Return the seconds of a batch of a run on one device."""
    resolved, _ = resolve_spec(RunSpec(task=task, method="fedavg+wfa", settings=settings), task)
    return fleet_batch_s(task, resolved, latency_scale(task, resolved))(device)


def test_seconds_are_scaled_from_their_measurement_to_the_run() -> None:
    task = fb.load_task("synthetic", users=12)  # stands for femnist's model at batches of 10
    flops, har = PUBLISHED["femnist"].train_flops, PUBLISHED["har"].train_flops
    assert batch_s_of(fb.Device(id="a", batch_s=2.0), task) == 2.0
    assert batch_s_of(fb.Device(id="a", batch_s=2.0, model="femnist"), task) == 2.0
    assert batch_s_of(fb.Device(id="a", batch_s=2.0), task, batch_size=100) == pytest.approx(2 * 9.1)
    assert batch_s_of(fb.Device(id="a", batch_s=2.0, batch_size=100), task) == pytest.approx(2 * 0.19)
    assert batch_s_of(fb.Device(id="a", batch_s=2.0, flops=flops / 2), task) == pytest.approx(2 * 2.0)
    assert batch_s_of(fb.Device(id="a", batch_s=2.0, model="har"), task) == pytest.approx(2 * flops / har)
    assert batch_s_of(fb.Device(id="a", sample_s=0.5), task) == 5.0
    assert batch_s_of(fb.Device(id="a", sample_s=0.5, flops=flops / 2), task, batch_size=20) == 20.0


def test_a_larger_batch_on_a_fleet_is_no_free_lunch() -> None:
    slow = fb.Fleet([fb.Device(id="x", batch_s=2.0, down_mbit_s=800, up_mbit_s=800)])
    small, large = (
        fb.run(
            "synthetic", "fedavg+wfa", rounds=2, timing_only=True, users=12, devices=slow, settings={"batch_size": B}
        )
        for B in (10, 60)
    )
    assert large.clock_s > 0.8 * small.clock_s


def test_short_batches_cost_by_their_samples_if_the_seconds_are_per_sample() -> None:
    fleet = fb.Fleet([fb.Device(id="x", sample_s=0.2, down_mbit_s=800, up_mbit_s=800)])
    options: dict[str, Any] = {"rounds": 1, "timing_only": True, "devices": fleet, "users": 12}
    runs = [fb.run("synthetic", "fedavg+wfa", settings={"batch_size": size}, **options) for size in (10, 500)]
    rows = [run.clients.filter(pl.col("train_s") > 0).sort("client") for run in runs]
    shares = (rows[1]["train_s"] / rows[0]["train_s"]).to_numpy()
    assert shares.min() > 0.8
    assert shares.max() < 1.2, "a client does not pay for 500 samples that it does not have"


def test_own_seconds_need_no_estimate() -> None:
    task = replace(fb.load_task("synthetic", users=12), latency=None, name="mine")
    for devices, estimated in ((None, True), (equal_devices(), False), (Steady(), False), ("paper", True)):
        spec = RunSpec(task=task, devices=devices)
        assert any("has no latency" in text for text in warnings_for_run(spec, task)) == estimated


def test_the_runs_of_a_sweep_have_the_devices() -> None:
    base = RunSpec(task="synthetic", users=12, rounds=1, devices=equal_devices())
    plan = SweepPlan.make(base, ["w=1,2"])
    assert plan.spec("fedbalancer[w=1]", 0).devices == equal_devices()
    assert plan.to_json()["spec"]["devices"]["sha256"] == equal_devices().digest


@pytest.mark.parametrize("draw", [None, (1, 2, 3), DeviceDraw(1.0, -1.0, 1.0), DeviceDraw(float("nan"), 1.0, 1.0)])
def test_devices_that_draw_no_seconds_are_refused(draw: Any) -> None:
    class Odd(Steady):
        def draw(self, client: str, round_number: int, down_bytes: int, up_bytes: int) -> Any:
            return draw

    with pytest.raises(BadSetting, match=r"devices: Odd\.draw"):
        fb.run("synthetic", "fedavg+1t", rounds=1, devices=Odd(), **OPTIONS)
