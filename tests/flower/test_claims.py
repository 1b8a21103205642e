"""Claims of clients on Flower: their size, their id, their metrics; and clients that never answer."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower.fakegrid import make_context
from flower.phones import FEATURES, Phone, World, weights_of
from flower.test_grid_engine import altered, metrics
from flwr.app import ArrayRecord, Message, MetricRecord
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.errors import BadSetting
from fedbalancer.flower.evaluation import MOST_NAMES
from fedbalancer.flower.events import LOGGED, shorten
from fedbalancer.server.report_check import MAX_GROWTH, MOST_WEIGHT, SMALL_GROWTH


def hold(phone: Phone, samples: int) -> None:
    """Give a phone other data."""
    phone.x = np.random.default_rng(samples).normal(size=(samples, FEATURES))
    phone.y = phone.x @ np.arange(1, FEATURES + 1)


def at(round: int, act: Callable[[], None]) -> Any:
    """An `evaluate_fn` that acts after a round."""

    def evaluate(number: int, record: ArrayRecord) -> MetricRecord:
        if number == round:
            act()
        return MetricRecord({"loss": 1.0})

    return evaluate


def completed(world: World) -> list[int]:
    return [fields["completed"] for fields in world.of("round closed")]


class TestSize:
    @pytest.mark.parametrize("name", ["fedavg+wfa", "fedbalancer", "fedbalancer+robust", "canter"])
    @pytest.mark.parametrize("samples", [60, 100, 5])
    def test_a_client_whose_data_grow_or_shrink_stays(self, name: str, samples: int) -> None:
        changing = Phone(2)
        assert len(changing.y) == 50
        world = World(Phone(0), Phone(1), changing)
        world.start(6, name, evaluate_fn=at(2, lambda: hold(changing, samples)))
        assert not world.of("invalid")
        assert not world.of("sits out")
        assert [(e["before"], e["samples"]) for e in world.of("resized")] == [(50, samples)]
        assert world.made.active_run is None
        assert len(changing.orders) == 6

    def test_a_size_within_the_bound_is_the_next_bound(self) -> None:
        changing = Phone(2)
        world = World(Phone(0), Phone(1), changing)
        sizes = iter([150, 300, 600, 601])
        world.start(
            5, "fedavg+wfa", evaluate_fn=lambda n, r: hold(changing, next(sizes, 601)) or MetricRecord({"a": 1})
        )
        assert [event["samples"] for event in world.of("resized")] == [150, 300, 600, 601]

    def test_beyond_the_bound_it_has_to_introduce_itself_again(self) -> None:
        growing = Phone(2)
        world = World(Phone(0), Phone(1), growing)
        world.start(9, "fedavg+wfa", evaluate_fn=at(2, lambda: hold(growing, 500)))
        (refused,) = world.of("invalid")
        most = int(max(MAX_GROWTH * 50, 50 + SMALL_GROWTH))
        assert refused["why"] == f"size 500, which must be from 1 to {most}: it was 50 before"
        assert [e["samples"] for e in world.of("client introduced") if e["client"] == "c2"] == [50, 500]
        assert completed(world)[-3:] == [3, 3, 3]

    def test_after_a_resume_the_new_size_counts(self, tmp_path: Path) -> None:
        phones = Phone(0), Phone(1), Phone(2)
        places = {"checkpoint_dir": tmp_path, "run_key": "mine"}
        World(*phones).start(2, "fedavg+wfa", **places)
        hold(phones[2], 500)
        world = World(*phones)
        world.start(5, "fedavg+wfa", **places)
        assert world.of("resumed")
        assert not world.of("invalid")
        assert completed(world) == [3, 3, 3]

    @pytest.mark.parametrize("size", [0, -5, 10**9, 2.5, 50.0])
    def test_a_size_that_cannot_be_is_named(self, size: float) -> None:
        world = World(Phone(0), Phone(1), Phone(2, change=lambda reply: altered(reply, metrics=metrics(size=size))))
        world.start(2, "fedavg+wfa")
        assert {event["client"] for event in world.of("invalid")} == {"c2"}
        assert completed(world) == [2, 2]

    def test_beyond_most_samples_there_is_no_size(self) -> None:
        world = World(Phone(0), Phone(1), growing := Phone(2))
        world.start(3, "fedavg+wfa", most_samples=60, evaluate_fn=at(1, lambda: hold(growing, 61)))
        assert "at most 60 (most_samples)" in world.of("invalid")[0]["why"]


class TestSilence:
    def test_a_client_that_never_answers_is_suspended_longer_every_time(self) -> None:
        hung = Phone(1, change=lambda reply: None)
        world = World(Phone(0), hung, Phone(2))
        world.start(40, "fedavg+1t")
        asked = [fields["round"] for fields in world.of("round") if "c1" in fields["cohort"]]
        gaps = np.diff(asked)
        assert (gaps[1:] > gaps[:-1]).all(), asked
        assert len(asked) <= 6
        assert [event["why"] for event in world.of("sits out")] == ["it did not answer"] * len(world.of("sits out"))

    def test_one_that_answers_late_is_not_suspended(self) -> None:
        late = Phone(2, change=lambda reply: [(5.0, reply)])
        world = World(Phone(0), Phone(1), late)
        world.start(8, "fedavg+1t")
        assert world.of("late reply")
        assert not world.of("sits out")

    @pytest.mark.parametrize("same_node", [True, False])
    def test_a_restart_ends_it(self, same_node: bool) -> None:
        hung = Phone(1, change=lambda reply: None)
        world = World(Phone(0), hung, Phone(2))
        asked: list[int] = []

        def evaluate(number: int, record: ArrayRecord) -> MetricRecord:
            if number == 14:
                asked.append(len(hung.orders))
                hung.change = None
                del world.grid.nodes[3]
            if number == 15:
                world.grid.nodes[3 if same_node else 50] = hung
            return MetricRecord({"loss": 1.0})

        world.start(20, "fedavg+1t", evaluate_fn=evaluate)
        assert len(hung.orders) >= asked[0] + 3

    def test_a_suspension_outlives_the_server(self, tmp_path: Path) -> None:
        places = {"checkpoint_dir": tmp_path, "run_key": "mine"}
        hung = Phone(1, change=lambda reply: None)
        World(Phone(0), hung, Phone(2)).start(15, "fedavg+1t", **places)
        asked = len(hung.orders)
        World(Phone(0), hung, Phone(2)).start(17, "fedavg+1t", **places)
        assert len(hung.orders) - asked <= 1


class TestWeight:
    def test_a_size_lie_among_nine_honest_clients_moves_the_model_little(self) -> None:
        """The liar claims as many samples as it may, and sends an update in the opposite direction."""
        honest = [Phone(0) for _ in range(9)]
        for number, phone in enumerate(honest):
            hold(phone, 30)
            phone.context = make_context(number + 2, **{"client-id": f"c{number}"})
        liar = Phone(9)
        hold(liar, 10**4)
        liar.y = -liar.y
        model = weights_of(World(*honest, liar).start(3, "fedavg+wfa", most_samples=10**4))
        alone = weights_of(World(*honest).start(3, "fedavg+wfa"))
        assert np.linalg.norm(model - alone) < 0.6 * np.linalg.norm(alone)
        assert (model * alone > 0).all(), "it keeps its direction"

    def test_the_cap_can_be_chosen(self) -> None:
        def model(**options: float) -> Any:
            phones = [Phone(number) for number in range(3)]
            hold(phones[2], 1000)
            return weights_of(World(*phones).start(1, "fedavg+wfa", **options)).tolist()

        assert model(most_weight=float("inf")) == model(most_weight=1000.0) != model()
        with pytest.raises(BadSetting, match=r"most_weight = 0.5 must be at least 1"):
            model(most_weight=0.5)

    def test_more_than_the_default_is_refused_by_name(self) -> None:
        world = World(Phone(0), Phone(1), liar := Phone(2))
        hold(liar, 10**5 + 1)
        world.start(1, "fedavg+wfa", min_clients=2)
        assert "1 to 100000 are allowed (most_samples)" in world.of("node not introduced")[0]["why"]
        assert not liar.orders

    def test_metrics_and_evaluations_have_the_same_cap(self) -> None:
        phones = [Phone(number) for number in range(5)]
        for phone in phones:
            hold(phone, 10)
            phone.metrics = {"mine": 0.0}
        hold(phones[4], 1000)
        phones[4].metrics = {"mine": 1.0}
        world = World(*phones)
        result = world.start(1, "fedavg+wfa", federated_evaluate=True)
        assert result.train_metrics_clientapp[1]["mine"] == pytest.approx(MOST_WEIGHT / (MOST_WEIGHT + 4))


class TestIdentity:
    def world(self, thief: Phone, **options: Any) -> World:
        """The node of c1 goes after two rounds, and another claims its id."""
        world = World(Phone(0), Phone(1))
        thief.context = make_context(60, **{"client-id": "c1"})

        def leave() -> None:
            del world.grid.nodes[3]
            world.grid.nodes[60] = thief

        world.start(6, "fedavg+1t", evaluate_fn=at(2, leave), min_clients=1, **options)
        return world

    def test_an_authenticated_nodes_id_is_not_taken_over(self) -> None:
        world = self.world(thief := Phone(5), authenticated_nodes=True)
        assert not thief.orders
        assert world.of("node not introduced")[0]["why"].startswith("id 'c1', which belongs to the key of node 3")
        self.world(other := Phone(5))
        assert other.orders, "without authentication a restarted node has another number"

    def test_not_after_a_resume_either(self, tmp_path: Path) -> None:
        places = {"checkpoint_dir": tmp_path, "run_key": "mine", "authenticated_nodes": True, "min_clients": 1}
        places["clients_per_round"] = 2
        World(Phone(0), Phone(1)).start(1, "fedavg+1t", **places)
        thief = Phone(5)
        thief.context = make_context(60, **{"client-id": "c1"})
        world = World(Phone(0))
        world.grid.nodes[60] = thief
        world.start(4, "fedavg+1t", **places)
        assert not thief.orders

    def test_a_node_has_one_client(self) -> None:
        """It grows beyond the bound, is asked who it is, and says another's name."""
        shifty = Phone(2)
        world = World(Phone(0), Phone(1), shifty)

        def change() -> None:
            hold(shifty, 500)
            shifty.context = make_context(4, **{"client-id": "c7"})

        world.start(6, "fedavg+wfa", evaluate_fn=at(1, change))
        assert "id 'c7' of a node that introduced itself as 'c2'" in world.of("node not introduced")[0]["why"]
        assert "c7" not in {client for fields in world.of("round") for client in fields["cohort"]}


class TestMetricNames:
    def test_new_names_in_every_round_do_not_grow_the_checkpoint(self, tmp_path: Path) -> None:
        class Chatty(Phone):
            def train(self, message: Message) -> Message:
                self.metrics = {f"name-{len(self.orders)}-{number}": 1.0 for number in range(100)}
                return super().train(message)

        honest = Phone(0), Phone(1)
        for phone in honest:
            phone.metrics = {"zeal": 0.5}
        world = World(*honest, Chatty(2))
        result = world.start(6, "fedavg+wfa", checkpoint_dir=tmp_path, run_key="mine")
        names = {name for found in result.train_metrics_clientapp.values() for name in found}
        assert len([name for name in names if name.startswith("name-")]) == MOST_NAMES - 1
        assert all(found["zeal"] == 0.5 for found in result.train_metrics_clientapp.values()), "most clients send it"
        (told,) = world.of("metrics not recorded")
        assert told["most"] == MOST_NAMES
        World(*honest, Chatty(2)).start(8, "fedavg+wfa", checkpoint_dir=tmp_path, run_key="mine")
        assert "name-5" not in (tmp_path / "mine" / "log.jsonl").read_text().replace("not recorded", "")

    def test_names_in_evaluations_are_bounded_too(self) -> None:
        class Chatty(Phone):
            count = 0

            def evaluate(self, message: Message) -> Message:
                Chatty.count += 1
                reply = super().evaluate(message)
                return altered(reply, metrics=metrics(**{f"n{Chatty.count}_{n}": 1.0 for n in range(100)}))

        world = World(Phone(0), Phone(1), Chatty(2))
        result = world.start(3, "fedavg+wfa", federated_evaluate=True)
        names = {name for found in result.evaluate_metrics_clientapp.values() for name in found}
        assert {"accuracy", "loss", "num-examples"} <= names
        assert len(names) <= MOST_NAMES + 1


class TestLog:
    @given(st.text())
    def test_a_line_is_short_and_printable(self, text: str) -> None:
        assert shorten(text).isprintable()
        assert len(shorten(text)) <= LOGGED
        assert shorten(shorten(text)) == shorten(text)

    def test_an_id_cannot_move_the_cursor(self, caplog: pytest.LogCaptureFixture) -> None:
        odd = Phone(1)
        odd.context = make_context(3, **{"client-id": "c1\x1b[2J\x07\u202e"})
        with caplog.at_level(logging.INFO):
            world = World(Phone(0), odd)
            world.start(1, "fedavg+wfa")
        assert world.of("client introduced")[1]["client"] == "c1\\x1b[2J\\x07\\u202e"
        shown = [record.getMessage() for record in caplog.records]
        assert not [text for text in shown if "\x1b" in text or "\u202e" in text]
        json.dumps(world.of("round"))
