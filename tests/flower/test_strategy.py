"""A run continues from its last checkpoint; Flower's strategies aggregate; mistakes are errors."""

from __future__ import annotations

import json
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import safetensors.numpy

pytest.importorskip("flwr", reason="flwr is not installed")

from flower.phones import Phone, World, weights_of
from flwr.serverapp import strategy as flower_strategies

from fedbalancer import method
from fedbalancer.client.samples import EverySample
from fedbalancer.core.errors import BadSetting, FedBalancerError, RunFolderError, UnknownName
from fedbalancer.flower import Strategy
from fedbalancer.server.deadline import FixedDeadline


class Killed(Exception):
    """The ServerApp dies."""


def dies_at(round: int) -> Any:
    def evaluate(number: int, arrays: Any) -> None:
        if number == round:
            raise Killed

    return evaluate


@pytest.mark.parametrize("dies", [0, 1, 3])
def test_a_run_that_died_ends_as_one_that_did_not(tmp_path: Path, dies: int) -> None:
    places = {"checkpoint_dir": tmp_path, "run_key": "mine"}
    wanted = World(Phone(0), Phone(1)).start(5, "fedavg+wfa+fedadam", checkpoint_dir=tmp_path, run_key="whole")
    world = World(Phone(0), Phone(1))
    with pytest.raises(Killed):
        world.start(5, "fedavg+wfa+fedadam", evaluate_fn=dies_at(dies), **places)
    assert json.loads((tmp_path / "mine" / "manifest.json").read_text())["status"] == "failed"
    again = World(*world.phones)
    result = again.start(5, "fedavg+wfa+fedadam", **places)
    assert weights_of(result) == pytest.approx(weights_of(wanted), abs=0)
    assert pl.read_parquet(tmp_path / "mine" / "rounds.parquet")["round"].to_list() == [1, 2, 3, 4, 5]
    assert bool(again.of("resumed")) == (dies > 1)


@pytest.mark.parametrize(
    ("end", "status", "why"),
    [
        (SystemExit(0), "stopped", "`flwr stop`"),
        (KeyboardInterrupt(), "stopped", "interrupted"),
        (SystemExit(1), "failed", "exited with code 1"),
        (ValueError("broken"), "failed", "ValueError('broken')"),
        (BadSetting("a wrong value"), "failed", "a wrong value"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_run_that_ends_early_says_how_and_leaves_the_model_of_its_last_checkpoint(
    tmp_path: Path, end: BaseException, status: str, why: str, at: int
) -> None:
    models: list[Any] = []

    def evaluate(number: int, arrays: Any) -> None:
        models.append(arrays["w"].numpy())
        if number == at:
            raise end

    with pytest.raises(type(end)):
        World(Phone(0), Phone(1)).start(5, "fedavg+wfa", evaluate_fn=evaluate, checkpoint_dir=tmp_path, run_key="mine")
    manifest = json.loads((tmp_path / "mine" / "manifest.json").read_text())
    assert manifest["status"] == status
    assert why in manifest["why"]
    model = tmp_path / "mine" / "model.safetensors"
    assert model.exists() == (at > 1)
    if at > 1:
        assert safetensors.numpy.load_file(model)["w"] == pytest.approx(models[at - 1], abs=0)
        assert "model.safetensors" in manifest["files"]


@pytest.mark.parametrize(
    ("name", "first", "last"), [("fedbalancer[w=5]", 15, 30), ("fedbalancer+late[w=5]", 15, 30), ("oort", 45, 60)]
)
def test_a_checkpoint_does_not_grow_with_the_rounds(tmp_path: Path, name: str, first: int, last: int) -> None:
    """Once it has the utilities of the last 2 w rounds."""
    phones, sizes = [Phone(0), Phone(1)], []
    for phone in phones:
        phone.metrics = {"f1": 0.5}
    for rounds in (first, last):
        World(*phones).start(rounds, name, checkpoint_dir=tmp_path, run_key="mine", federated_evaluate=True)
        sizes.append((tmp_path / "mine" / "checkpoint" / f"step-{rounds:08d}" / "state.json").stat().st_size)
    assert sizes[1] < 1.1 * sizes[0]


def test_results_of_earlier_rounds_are_there_after_a_resume(tmp_path: Path) -> None:
    places = {"checkpoint_dir": tmp_path, "run_key": "mine", "federated_evaluate": True}
    wanted = World(Phone(0), Phone(1)).start(4, "fedavg+wfa", federated_evaluate=True)
    phones = (Phone(0), Phone(1))
    World(*phones).start(2, "fedavg+wfa", **places)
    result = World(*phones).start(4, "fedavg+wfa", **places)
    assert list(result.train_metrics_clientapp) == list(wanted.train_metrics_clientapp) == [1, 2, 3, 4]
    assert list(result.evaluate_metrics_clientapp) == [0, 1, 2, 3, 4]
    for kind in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        for round, found in getattr(wanted, kind).items():
            assert dict(getattr(result, kind)[round]) == pytest.approx(dict(found), nan_ok=True)


def test_the_log_is_one_as_flowers_users_know_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="flwr.fedbalancer"):
        World(Phone(0)).start(2, "fedavg+wfa", checkpoint_dir=tmp_path, run_key="mine")
    said = [record.getMessage() for record in caplog.records]
    wanted = ["[ROUND 1/2]", "[ROUND 2/2]", "Strategy execution finished", "Final results:", "\tGlobal Arrays:"]
    found = [line for line in said if line.startswith(tuple(wanted))]
    assert [line.startswith(start) for line, start in zip(found, wanted, strict=True)] == [True] * len(wanted)
    assert json.loads((tmp_path / "mine" / "manifest.json").read_text())["versions"]["flwr"] == version("flwr")


def test_a_run_that_is_done_is_not_run_again(tmp_path: Path) -> None:
    world = World(Phone(0), Phone(1))
    places = {"checkpoint_dir": tmp_path, "run_key": "mine"}
    wanted = world.start(2, **places)
    asked = len(world.phones[0].orders)
    assert weights_of(world.start(2, **places)) == pytest.approx(weights_of(wanted), abs=0)
    assert len(world.phones[0].orders) == asked


def test_a_key_of_another_method_is_refused(tmp_path: Path) -> None:
    World(Phone(0), Phone(1)).start(1, checkpoint_dir=tmp_path, run_key="mine")
    with pytest.raises(RunFolderError, match="fedavg"):
        World(Phone(0), Phone(1)).start(1, "fedavg+1t", checkpoint_dir=tmp_path, run_key="mine")


def test_a_run_does_not_go_on_with_other_settings_unless_told(tmp_path: Path) -> None:
    places = {"checkpoint_dir": tmp_path, "run_key": "mine"}
    World(Phone(0), Phone(1)).start(1, "fedavg+wfa", **places)
    changed = {"learning_rate": 0.5, "epochs": 2, "settings": {"clip_norm": 3.0}}
    manifest = tmp_path / "mine" / "manifest.json"
    before = json.loads(manifest.read_text())
    with pytest.raises(RunFolderError, match=r"learning_rate 0.05, now 0.5") as refused:
        World(Phone(0), Phone(1)).start(2, "fedavg+wfa", **places, **changed)
    assert all(name in str(refused.value) for name in ("epochs 3, now 2", "clip_norm None, now 3.0", "accept_changes"))
    assert json.loads(manifest.read_text()) == before

    phones = (Phone(0), Phone(1))
    World(*phones).start(3, "fedavg+wfa", accept_changes=True, **places, **changed)
    assert phones[0].orders[0].order.learning_rate == 0.5
    after = json.loads(manifest.read_text())
    assert after["settings"]["learning_rate"] == 0.5
    assert {"after_round": 1, "setting": "epochs", "before": 3, "now": 2} in after["changes"]
    assert (after["rounds"], len(after["changes"])) == (3, 3)
    World(*phones).start(4, "fedavg+wfa", **places, **changed)


def test_larger_batches_are_expected_to_take_longer_until_they_were_measured(tmp_path: Path) -> None:
    places = {"checkpoint_dir": tmp_path, "run_key": "mine"}
    phones = (Phone(0), Phone(1))
    World(*phones).start(1, "fedavg+wfa", **places)
    phones[0].orders.clear()
    World(*phones).start(3, "fedavg+wfa", **places, batch_size=20, accept_changes=True)
    assert [told.batch_s for told in phones[0].orders] == pytest.approx([1.0, 0.5])


def test_neither_does_it_with_another_aggregation_or_training_configuration(tmp_path: Path) -> None:
    places = {"checkpoint_dir": tmp_path, "run_key": "mine"}
    World(Phone(0), Phone(1)).start(1, "fedavg+wfa", aggregate=flower_strategies.FedAdam(eta=0.1), **places)
    with pytest.raises(RunFolderError, match="FedYogi"):
        World(Phone(0), Phone(1)).start(2, "fedavg+wfa", aggregate=flower_strategies.FedYogi(), **places)
    with pytest.raises(RunFolderError, match=r"eta=0.2"):
        World(Phone(0), Phone(1)).start(2, "fedavg+wfa", aggregate=flower_strategies.FedAdam(eta=0.2), **places)


def test_a_client_that_joined_is_there_after_a_resume(tmp_path: Path) -> None:
    places = {"checkpoint_dir": tmp_path, "run_key": "mine", "clients_per_round": 3}
    world = World(Phone(0), Phone(1))
    third = Phone(2)

    def evaluate(number: int, arrays: Any) -> None:
        if number == 1:
            world.grid.nodes[9] = third
        if number == 4:
            raise Killed

    with pytest.raises(Killed):
        world.start(6, evaluate_fn=evaluate, **places)
    result = World(*world.phones, third).start(6, **places)
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3, 4, 5, 6]
    assert "c2" in pl.read_parquet(tmp_path / "mine" / "clients.parquet")["client"].to_list()


@pytest.mark.parametrize("name", [
        "FedAvg", "FedAdam", "FedYogi", "FedAdagrad", "FedAvgM", "FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum",
        "Bulyan", "QFedAvg",
    ])  # fmt: skip
def test_a_strategy_of_flower_aggregates(name: str, tmp_path: Path) -> None:
    """The same rounds whether they ran through or were resumed: what the strategy remembers is in the checkpoint."""
    given = {"client_learning_rate": 0.05} if name == "QFedAvg" else {}
    kind = partial(getattr(flower_strategies, name), **given)
    wanted = World(Phone(0), Phone(1), Phone(2)).start(4, "fedavg+wfa", aggregate=kind())
    places = {"checkpoint_dir": tmp_path, "run_key": "mine"}
    phones = (Phone(0), Phone(1), Phone(2))
    World(*phones).start(2, "fedavg+wfa", aggregate=kind(), **places)
    resumed = World(*phones).start(4, "fedavg+wfa", aggregate=kind(), **places)
    assert np.abs(weights_of(wanted)).max() > 0.05
    assert weights_of(resumed) == pytest.approx(weights_of(wanted), rel=1e-6)


def test_policies_of_ones_own_are_needed_on_the_side_that_runs_them() -> None:
    class Mine(EverySample):
        """A class that no client knows by name."""

    World(Phone(0)).start(1, method("fedbalancer", deadline=FixedDeadline(2)))
    with pytest.raises(BadSetting, match="method="):
        World(Phone(0)).start(1, method("fedbalancer", samples=Mine()))


def test_mistakes_of_the_user_are_told() -> None:
    with pytest.raises(UnknownName, match="fedbalancer"):
        World(Phone(0)).strategy("fedbalanser")
    with pytest.raises(UnknownName, match="noise_factor"):
        World(Phone(0)).strategy(settings={"noise_faktor": 1})
    with pytest.raises(FedBalancerError, match="run_key"):
        World(Phone(0)).start(1, run_key="../other", min_clients=1)


def test_settings_in_the_brackets_of_a_name_are_the_strategys() -> None:
    for named in ("fedbalancer[epochs=2, w=3]", method("fedbalancer[w=3,epochs=2]")):
        strategy = Strategy(named, epochs=5, settings={"w": 7})
        assert strategy.settings.epochs == 2
        assert strategy.method.pace.w == 3
        assert strategy.method.name == "fedbalancer[epochs=2,w=3]"


def test_a_robust_strategy_is_the_methods_robust_form_in_name_too(tmp_path: Path) -> None:
    assert Strategy("fedbalancer[w=5]", robust=True).method == method("fedbalancer+robust[w=5]")
    assert Strategy("fedbalancer+robust", robust=True).method.name == "fedbalancer+robust"
    assert Strategy(method("fedavg+1t"), robust=True).method.name == "fedavg+1t+robust"
    world = World(Phone(0), Phone(1), Phone(2))
    with pytest.raises(Killed):
        world.start(4, robust=True, checkpoint_dir=tmp_path, run_key="mine", evaluate_fn=dies_at(3))
    again = World(*world.phones)
    again.start(4, robust=True, checkpoint_dir=tmp_path, run_key="mine")
    assert again.of("resumed"), "all that its policies remember is in the checkpoint"
    assert json.loads((tmp_path / "mine" / "manifest.json").read_text())["method"] == "fedbalancer+robust"


def test_attackers_are_simulated_only() -> None:
    with pytest.raises(BadSetting, match="can simulate attackers"):
        Strategy(settings={"attacks": ["update-flip:1"]})
