"""Attackers: who they are, what they send, and that nothing else changes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_order, make_report
from experiments import tinytask

import fedbalancer as fb
from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.types import ClientReport, Order, Timings
from fedbalancer.experiments.execute import execute
from fedbalancer.experiments.executor_cache import ExecutorCache
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.server.report_check import find_fault
from fedbalancer.simulation.attacks import (
    ATTACKS,
    Attackers,
    AttackView,
    Collusion,
    DataAttack,
    MetadataLiar,
    TargetedAttack,
    UpdateFlip,
    UtilityLiar,
    make_attackers,
    parse_attack,
    poison_task,
)
from fedbalancer.simulation.executors import Resources

CLIENTS = tuple(f"c{number}" for number in range(20))


class Unreadable:
    """A histogram that is none."""

    def falsify(self, report: ClientReport, order: Order) -> ClientReport:
        return replace(report, summary=replace(report.summary, released=(math.nan,)))


def sent(text: str, **report: object) -> object:
    attack, _ = parse_attack(f"{text}:1")
    return attack.falsify(make_report(update=[1.0, -2.0], **report), make_order())  # type: ignore[arg-type]


HONEST = [np.array([1.0, 2.0], dtype=np.float32), np.array([3.0, -2.0], dtype=np.float32)]
LAST_STEP = np.array([0.5, -0.25], dtype=np.float32)


def colluded(text: str, round_number: int = 2, reports: int = 2, **summary: Any) -> list[ClientReport]:
    """The reports of attackers whose true updates are (3, 4), beside two honest clients."""
    attack, order = parse_attack(f"{text}:1")[0], make_order(round=round_number)
    assert isinstance(attack, Collusion)
    view = AttackView(order, np.zeros(2, dtype=np.float32), LAST_STEP, HONEST)
    return attack.collude([make_report(f"c{n}", [3.0, 4.0], **summary) for n in range(reports)], view)


class TestNames:
    @pytest.mark.parametrize("name", ATTACKS)
    def test_every_attack_has_a_name_and_changes_a_report_or_its_data(self, name: str) -> None:
        before, attack = make_report(update=[1.0, -2.0]), parse_attack(f"{name}:3")[0]
        if isinstance(attack, DataAttack):
            labels = np.array([3, 0, 1])
            assert attack.poison((np.zeros((3, 5)), labels), 10)[1].tolist() != labels.tolist()
            return
        if isinstance(attack, Collusion):
            later = colluded(name, 16)[0]
            assert later.update.tolist() != [3.0, 4.0]
            assert later.summary.loss_mean == pytest.approx(math.log(10))
            assert attack.falsify(before, make_order()) is before
            return
        after = attack.falsify(before, make_order(round=2))
        assert after.client == before.client
        assert after.summary != before.summary or after.update.tolist() != before.update.tolist()

    def test_a_liar_about_its_epochs_claims_batches_that_fill_the_time(self) -> None:
        honest = replace(make_report(trained=100, weight=100.0), timings=Timings(train_s=60.0))
        lied = parse_attack("epochs-liar(factor=.2,samples=.5):1")[0].falsify(honest, make_order())
        assert (lied.epochs, lied.weight, lied.summary.trained, lied.summary.batch_s) == (1.0, 50.0, 50, 12.0)
        assert find_fault(lied, lied.update, 100, make_order()) is None, "it could be true"

    def test_arguments_are_given_in_parentheses(self) -> None:
        assert parse_attack("metadata-liar(factor=1e40, field='high'):10") == (MetadataLiar(1e40, "high"), 10)

    def test_an_attack_of_ones_own_is_named_as_any_policy(self) -> None:
        assert parse_attack("fedbalancer.simulation.attacks:UpdateFlip(factor=2):4") == (UpdateFlip(2), 4)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("update-flip", "a number of clients"), ("update-flip:0", "a number"), ("update-flip:x", "a number"),
            ("update-flip(factor=0):1", "factor = 0"), ("update-flip(size=1):1", "size"), ("a.b:C:1", "No module"),
            ("fedbalancer.core.types:Order:1", "cannot be created"), ("metadata-liar(field='no'):1", "one of all"),
        ],
    )  # fmt: skip
    def test_what_is_wrong_is_said(self, text: str, words: str) -> None:
        with pytest.raises(BadSetting, match=words):
            parse_attack(text)

    def test_the_nearest_name_is_told(self) -> None:
        with pytest.raises(UnknownName, match="did you mean update-flip"):
            parse_attack("updateflip:1")


class TestWho:
    def test_the_seed_decides_and_more_of_them_are_the_same_and_others(self) -> None:
        one, ten = (make_attackers([f"update-flip:{n}"], CLIENTS, 3) for n in (1, 10))
        assert one is not None
        assert ten is not None
        assert set(one.attack_of) < set(ten.attack_of)
        assert len(ten.attack_of) == 10
        other = make_attackers(["update-flip:10"], CLIENTS, 4)
        assert other is not None
        assert set(other.attack_of) != set(ten.attack_of)

    def test_no_client_makes_two_attacks(self) -> None:
        found = Attackers.draw([(UpdateFlip(), 12), (UtilityLiar(), 8)], CLIENTS, 0)
        assert set(found.attack_of) == set(CLIENTS)

    def test_more_attackers_than_clients_are_refused(self) -> None:
        with pytest.raises(BadSetting, match="21 attackers are more than the 20 clients"):
            make_attackers(["update-flip:21"], CLIENTS, 0)

    def test_without_attacks_there_is_nobody(self) -> None:
        assert make_attackers([], CLIENTS, 0) is None


class TestWhat:
    def test_losses_stay_consistent_where_all_are_inflated(self) -> None:
        told = sent("metadata-liar").summary  # type: ignore[attr-defined]
        assert (told.loss_low, told.loss_high, told.loss_sum, told.over_sumsq) == (1.0, 20.0, 100.0, 500.0)
        assert (told.loss_count, told.over_count, told.trained, told.batch_s) == (10.0, 5.0, 10, 1.0)

    def test_one_statistic_can_be_chosen(self) -> None:
        told = sent("metadata-liar(factor=1e40, field='high')").summary  # type: ignore[attr-defined]
        assert (told.loss_low, told.loss_high) == (0.1, 2e40)

    def test_a_histogram_is_pushed_to_one_end_with_its_total(self) -> None:
        alone = {"released": (5.0, 3.0, 2.0), "loss_count": 0.0}
        told = sent("metadata-liar", **alone).summary  # type: ignore[attr-defined]
        assert told.released == (0.0, 0.0, 10.0)
        told = sent("metadata-liar(factor=0)", **alone).summary  # type: ignore[attr-defined]
        assert told.released == (10.0, 0.0, 0.0)

    def test_a_share_is_one_or_none(self) -> None:
        alone = {"released": (0.3,), "loss_count": 0.0}
        assert sent("metadata-liar", **alone).summary.released == (1.0,)  # type: ignore[attr-defined]
        assert sent("metadata-liar(factor=0)", **alone).summary.released == (0.0,)  # type: ignore[attr-defined]

    def test_statistics_are_inflated_where_something_is_released_beside_them(self) -> None:
        told = sent("metadata-liar", released=(5.0, 3.0, 2.0)).summary  # type: ignore[attr-defined]
        assert (told.loss_sum, told.released) == (100.0, (5.0, 3.0, 2.0))

    def test_updates_are_flipped_and_scaled_as_float32(self) -> None:
        flipped = sent("update-flip(factor=100)").update  # type: ignore[attr-defined]
        assert flipped.dtype == np.float32
        assert flipped.tolist() == [-100.0, 200.0]
        assert not np.isfinite(sent("update-scale(factor=1e300)").update).any()  # type: ignore[attr-defined]

    def test_flipped_labels_are_the_attackers_alone_and_never_those_of_the_test(self) -> None:
        task = tinytask.load()
        poisoned, who = poison_task(task, ("label-flip:2",), 3), make_attackers(["label-flip:2"], tuple(task.sizes), 3)
        assert who is not None
        classes = int(np.max(task.test[1])) + 1
        for client, (features, labels) in task.clients.items():
            wanted = classes - 1 - labels if client in who.attack_of else labels
            assert np.array_equal(poisoned.clients[client][1], wanted)
            assert np.array_equal(poisoned.clients[client][0], features)
        assert poisoned.test is task.test
        assert poisoned.sizes == task.sizes
        assert poison_task(task, ("update-flip:2",), 3) is task

    def test_labels_that_are_no_classes_cannot_be_flipped(self) -> None:
        task = tinytask.load()
        floats = {client: (x, y.astype(np.float32)) for client, (x, y) in task.clients.items()}
        other = replace(task, clients=floats, test=(task.test[0], task.test[1].astype(np.float32)))
        with pytest.raises(BadSetting, match="one class per sample"):
            fb.run(other, settings={"attacks": ["label-flip:1"]})


class TestCollusion:
    @pytest.mark.parametrize(
        ("text", "sent"),
        [
            ("step-replay", [1.0, -0.5]), ("step-replay(factor=-1)", [-0.5, 0.25]), ("silence", [0.0, 0.0]),
            ("quiet-flip(factor=.5)", [-1.5, -2.0]), ("inner-product(factor=1)", [-2.0, 0.0]),
            ("little-is-enough(z=2)", [0.0, -4.0]),
        ],
    )  # fmt: skip
    def test_what_they_send(self, text: str, sent: list[float]) -> None:
        assert [report.update.tolist() for report in colluded(text)] == [sent, sent]

    def test_the_claimed_loss_is_consistent_or_true(self) -> None:
        lied = colluded("silence", loss_sum=20.0, loss_count=10.0)[0].summary
        assert lied.loss_sum == pytest.approx(10 * math.log(10))
        assert colluded("silence(loss=None)", loss_sum=20.0, loss_count=10.0)[0].summary.loss_sum == 20.0

    def test_one_direction_in_all_rounds_as_long_as_the_true_update_times_the_factor(self) -> None:
        first, later = (colluded("common-direction", number)[0].update for number in (1, 9))
        assert np.array_equal(first, later)
        assert np.linalg.norm(first) == pytest.approx(7.5)

    def test_values_beyond_all_honest_ones_against_their_direction(self) -> None:
        for report in colluded("against-median"):
            assert 0.5 <= report.update[0] <= 1.0, "they rise, so below the lowest"
            assert 2.0 <= report.update[1] <= 4.0, "their mean is 0, so above the highest"
        assert not np.array_equal(*(report.update for report in colluded("against-median")))

    def test_honest_before_and_between(self) -> None:
        assert colluded("sleeper", 15)[0].update.tolist() == [3.0, 4.0]
        assert colluded("sleeper", 16)[0].update.tolist() == [-9.0, -12.0]
        assert colluded("alternating", 3)[0].update.tolist() == [3.0, 4.0]
        assert colluded("alternating", 4)[0].update.tolist() == [-27.0, -36.0]

    def test_attackers_see_the_honest_updates_and_the_last_step_of_a_run(self) -> None:
        attackers = Attackers({"c1": parse_attack("step-replay:1")[0]})
        reports, start = [make_report(f"c{n}", [1.0, 1.0]) for n in range(2)], np.zeros(2, dtype=np.float32)
        sent = [attackers.falsify(reports, make_order(), start + n)[1].update.tolist() for n in (0, 3, 3, 4)]
        assert sent == [[0.0, 0.0], [6.0, 6.0], [6.0, 6.0], [2.0, 2.0]], "a lost round is no step"
        again = Attackers(attackers.attack_of)
        again.load(attackers.to_arrays())
        assert again.falsify(reports, make_order(), start + 4)[1].update.tolist() == [2.0, 2.0]
        assert attackers.falsify(reports, make_order(), start)[0] is reports[0]

    def test_a_class_is_relabelled_and_its_test_samples_are_the_victims(self) -> None:
        attack = parse_attack("targeted-flip:1")[0]
        assert isinstance(attack, DataAttack)
        assert isinstance(attack, TargetedAttack)
        samples = np.arange(4.0).reshape(4, 1), np.array([3, 1, 6, 3])
        assert attack.poison(samples, 10)[1].tolist() == [6, 1, 6, 6]
        assert attack.victims(samples, 10)[0].ravel().tolist() == [0.0, 3.0]
        with pytest.raises(BadSetting, match="below the task's 5 classes"):
            attack.poison(samples, 5)

    def test_half_of_the_samples_have_the_trigger_and_its_victims_are_of_other_classes(self) -> None:
        attack = parse_attack("backdoor(size=1,target=1):1")[0]
        assert isinstance(attack, DataAttack)
        assert isinstance(attack, TargetedAttack)
        samples = np.zeros((3, 2, 2)), np.array([3, 1, 6])
        features, labels = attack.poison(samples, 10)
        assert labels.tolist() == [1, 1, 1]
        assert features[:, 0, 0].tolist() == [5.0, 0.0, 5.0]
        features, labels = attack.victims(samples, 10)
        assert (features[:, 0, 0].tolist(), labels.tolist()) == ([5.0, 5.0], [3, 6])
        with pytest.raises(BadSetting, match="not numbers"):
            attack.poison((np.zeros((3, 2), dtype=np.int64), samples[1]), 10)


class TestRuns:
    def test_colluders_give_the_same_bytes_on_any_number_of_workers_and_after_a_resume(self, tmp_path: Path) -> None:
        settings = {"checkpoint_s": 0.0, "attacks": ["step-replay:3", "little-is-enough:2"]}
        spec = RunSpec(task=tinytask.load(), settings=settings, rounds=6, backend="plain")
        whole = execute(spec, tmp_path / "whole")
        with ExecutorCache(Resources(executor="pool", workers=2)) as cache:
            assert np.array_equal(execute(spec, executors=cache).weights, whole.weights)
        answers = iter([False, False, False, True])
        assert execute(spec, tmp_path / "part", stopped=lambda: next(answers, True)).status == "stopped"
        fb.resume(tmp_path / "part", task=tinytask.load())
        for name in ("rounds.parquet", "model.safetensors"):
            assert (tmp_path / "part" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()

    def test_who_flips_labels_changes_with_the_seed_though_executors_are_shared(self, tmp_path: Path) -> None:
        """Runs of one process, and a pool of workers, which make their own trainers."""
        settings = {"attacks": ["label-flip:3"]}
        spec = RunSpec(task=tinytask.load(), settings=settings, rounds=3, backend="plain")
        specs = [replace(spec, seed=seed) for seed in (0, 1)]
        alone = [execute(each) for each in specs]
        with ExecutorCache() as cache:
            shared = [execute(each, executors=cache) for each in (*specs, replace(spec, settings={}))]
        with ExecutorCache(Resources(executor="pool", workers=1)) as cache:
            shared.append(execute(specs[1], executors=cache))
        assert np.array_equal(shared[0].weights, alone[0].weights)
        assert np.array_equal(shared[1].weights, alone[1].weights)
        assert np.array_equal(shared[3].weights, alone[1].weights)
        assert not np.array_equal(shared[2].weights, alone[0].weights)

    def test_attackers_are_in_the_manifest_and_a_resumed_run_gives_the_same_bytes(self, tmp_path: Path) -> None:
        settings = {"checkpoint_s": 0.0, "attacks": ["update-flip:2", "utility-liar:1"]}
        spec = RunSpec(task=tinytask.load(), settings=settings, rounds=6, backend="plain")
        whole = execute(spec, tmp_path / "whole")
        manifest = json.loads((tmp_path / "whole" / "manifest.json").read_text())
        assert manifest["settings"]["attacks"] == settings["attacks"]
        answers = iter([False, False, False, True])
        assert execute(spec, tmp_path / "part", stopped=lambda: next(answers, True)).status == "stopped"
        fb.resume(tmp_path / "part", task=tinytask.load())
        for name in ("rounds.parquet", "clients.parquet", "model.safetensors"):
            assert (tmp_path / "part" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
        honest = execute(replace(spec, settings={}))
        assert not np.array_equal(whole.weights, honest.weights)

    def test_a_histogram_that_cannot_be_read_is_left_out_before_it_spoils_the_others(self) -> None:
        settings = {"attacks": ["simulation.test_attacks:Unreadable:2"], "summary": "Histogram(bins=8)"}
        found = fb.run(tinytask.load(), "fedbalancer", rounds=4, settings=settings)
        wrong = found.clients.filter(found.clients["why"] != "")
        assert wrong.height > 0
        assert wrong["why"].str.contains("a histogram of 1 values, which must be 8").all()
        assert set(wrong["outcome"]) == {"invalid"}
        assert np.isfinite(found.weights).all()

    def test_a_run_with_more_attackers_than_clients_is_refused_before_it_starts(self, tmp_path: Path) -> None:
        with pytest.raises(BadSetting, match="attackers"):
            fb.run(tinytask.load(), out=tmp_path / "r", settings={"attacks": ["update-flip:1000"]})
        assert not (tmp_path / "r").exists()

    def test_attacks_belong_to_no_method(self) -> None:
        with pytest.raises(BadSetting, match="describes the clients"):
            fb.method("fedbalancer[attacks=update-flip:1]")
