"""`CheckedUpdates`: which updates count, by how they respond to the model, and how much."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import make_report, make_setup, make_state

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import ClientReport, ServerState
from fedbalancer.server.aggregate import CheckedUpdates, Median, ServerMomentum
from fedbalancer.server.aggregate.checked import CheckedState, crowd_sizes, response
from fedbalancer.store.codec import decode_state, encode_state

SIZE = 40
CLIENTS = [f"c{number:02}" for number in range(20)]
OPTIMA = {client: np.random.default_rng(number).normal(size=SIZE) for number, client in enumerate(CLIENTS)}


def descend(client: str, model: np.ndarray) -> np.ndarray:
    """The update of a client whose loss is half the squared distance from its own optimum."""
    return np.asarray(0.3 * (OPTIMA[client] - model))


def start(policy: CheckedUpdates) -> ServerState:
    return replace(make_state(weights=np.zeros(SIZE, dtype=np.float32)), aggregate=policy.init(make_setup()), round=0)


def play(policy: CheckedUpdates, state: ServerState, updates: dict[str, np.ndarray], **changes: Any) -> ServerState:
    """The state after a round with these updates."""
    reports = [replace(make_report(client, update.tolist()), **changes) for client, update in updates.items()]
    weights, own = policy.aggregate(make_setup(), state, reports)
    return replace(state, weights=weights, aggregate=own, round=state.round + 1)


def after(policy: CheckedUpdates, rounds: int, attack: Any, attackers: int = 4) -> ServerState:
    """The state after some rounds of all clients, of which the first ones send `attack(client, model, round)`."""
    state = start(policy)
    for number in range(rounds):
        model = state.weights.astype(np.float64)
        honest = {client: descend(client, model) for client in CLIENTS}
        lies = {client: attack(client, model, number) for client in CLIENTS[:attackers]}
        state = play(policy, state, honest | lies)
    return state


def error(state: ServerState, attackers: int = 4) -> float:
    """Distance from the honest clients' common optimum, as a share of its distance from the start."""
    optimum = np.mean([OPTIMA[client] for client in CLIENTS[attackers:]], axis=0)
    return float(np.linalg.norm(state.weights - optimum) / np.linalg.norm(optimum))


class TestResponse:
    def test_a_client_that_descends_responds_and_one_that_ascends_does_the_opposite(self) -> None:
        old, new = np.zeros(SIZE), np.random.default_rng(9).normal(size=SIZE)
        one, other = ((each / np.linalg.norm(each)) for each in (descend("c00", old), descend("c00", new)))
        assert response(one, other, old, new) > 0.3
        assert response(-one, -other, old, new) == pytest.approx(-response(one, other, old, new))

    def test_who_does_not_change_or_whose_model_does_not_has_none(self) -> None:
        x, y = np.float32([1, 0]), np.float32([0, 1])
        assert (response(x, x, x, y), response(x, y, x, x)) == (0.0, 0.0)
        assert response(x, x + np.float32(1e-6) * y, x, -y) == 0.0, "rounding"


class TestWhoCounts:
    def test_honest_clients_with_very_different_data_all_count(self) -> None:
        state = after(CheckedUpdates(), 6, lambda client, model, number: descend(client, model))
        assert state.aggregate.refusals == {}
        assert error(state, 0) < 0.2

    @pytest.mark.parametrize(
        "attack",
        [
            lambda client, model, number: -descend(client, model),
            lambda client, model, number: np.ones(SIZE),
            lambda client, model, number: np.zeros(SIZE),
        ],
        ids=["ascends", "constant", "silent"],
    )
    def test_who_does_not_descend_is_refused_from_its_second_report_on(self, attack: Any) -> None:
        state = after(CheckedUpdates(), 12, attack)
        assert set(state.aggregate.refusals) == set(CLIENTS[:4])
        assert min(state.aggregate.refusals.values()) >= 10
        assert error(state) < 0.1

    def test_random_updates_are_refused_most_of_the_time(self) -> None:
        rng = np.random.default_rng(3)
        state = after(CheckedUpdates(), 12, lambda client, model, number: 3 * rng.normal(size=SIZE))
        assert len(set(state.aggregate.refusals) & set(CLIENTS[:4])) >= 3
        assert set(state.aggregate.refusals) <= set(CLIENTS[:4])

    def test_a_model_on_which_no_update_counts_stays(self) -> None:
        policy, ones = CheckedUpdates(ServerMomentum()), {client: np.ones(SIZE) for client in CLIENTS[:3]}
        state = play(policy, start(policy), ones)
        again = play(policy, state, ones)
        assert np.array_equal(again.weights, state.weights), "not even by the momentum"
        assert again.aggregate.refusals == dict.fromkeys(CLIENTS[:3], 1)

    def test_late_updates_of_a_forgotten_model_are_not_checked_and_not_remembered(self) -> None:
        policy = CheckedUpdates()
        state = after(policy, 3, lambda client, model, number: descend(client, model), 0)
        late = play(policy, state, {"c00": -descend("c00", state.weights)}, staleness=3)
        assert late.aggregate.refusals == {}
        assert late.aggregate.received == state.aggregate.received

    def test_only_so_many_clients_are_remembered(self) -> None:
        state = after(CheckedUpdates(memory=5), 3, lambda client, model, number: descend(client, model), 0)
        own = state.aggregate
        assert own.clients == tuple(CLIENTS[-5:])
        assert (own.directions.shape, own.models.shape, own.received) == ((5, SIZE), (1, SIZE), (2,) * 5)


class TestHowMuch:
    def test_nobody_pulls_further_than_the_median_times_the_radius(self) -> None:
        updates = {"c00": np.eye(SIZE)[0], "c01": np.eye(SIZE)[1], "c02": 8 * np.eye(SIZE)[2]}
        state = play(CheckedUpdates(radius=2.0, most_alike=100.0), start(CheckedUpdates()), updates)
        assert state.weights[:3].tolist() == pytest.approx([1 / 3, 1 / 3, 2 / 3])

    def test_nobody_weighs_more_than_three_times_the_median(self) -> None:
        policy, state = CheckedUpdates(most_alike=100.0), start(CheckedUpdates())
        reports = [make_report(f"c{n}", np.eye(SIZE)[n].tolist(), 1000.0 if n == 3 else 10.0) for n in range(4)]
        assert policy.aggregate(make_setup(), state, reports)[0][3] == pytest.approx(0.5), "30 of 60"

    def test_clients_that_push_in_one_direction_share_a_weight(self) -> None:
        updates = {client: np.eye(SIZE)[min(place, 16)] for place, client in enumerate(CLIENTS)}
        state = play(CheckedUpdates(), start(CheckedUpdates()), updates)
        assert 0 < state.weights[16] < 2 * state.weights[0], "four of twenty"
        plain = play(CheckedUpdates(most_alike=100.0), start(CheckedUpdates()), updates)
        assert plain.weights[16] == pytest.approx(4 * plain.weights[0])

    def test_clients_that_agree_keep_their_weight(self) -> None:
        rng = np.random.default_rng(0)
        alike = np.float32([np.ones(SIZE) + 0.3 * rng.normal(size=SIZE) for _ in range(20)])
        sizes = crowd_sizes(alike, alike)
        assert sizes.max() < 1.5 * np.median(sizes)
        assert crowd_sizes(alike, np.zeros((0, 0), dtype=np.float32)).tolist() == [1.0] * 20

    def test_what_is_far_longer_than_usual_is_a_fault(self) -> None:
        policy = CheckedUpdates()
        state = make_state(aggregate=CheckedState(None, norms=(1.0, 1.0)))
        reports = [make_report("c0", [1.0, 0.0]), make_report("c1", [0.0, -100.0])]
        assert list(policy.cohort_faults(state, reports)) == ["c1"]
        assert "norm 100, which must be at most 10" in policy.cohort_faults(state, reports)["c1"]
        new = make_state(aggregate=CheckedState(None))
        assert policy.cohort_faults(new, reports) == {}, "of two, nobody knows who is unusual"
        more = [*reports, make_report("c2", [1.0, 0.0]), make_report("c3", [1.0, 0.0])]
        assert list(policy.cohort_faults(new, more)) == ["c1"]

    def test_half_of_the_first_round_cannot_make_long_updates_usual(self) -> None:
        policy, state = CheckedUpdates(), start(CheckedUpdates())
        updates = {
            client: descend(client, state.weights) * (100 if place < 5 else 1)
            for place, client in enumerate(CLIENTS[:10])
        }
        reports = [make_report(client, update.tolist()) for client, update in updates.items()]
        assert set(policy.cohort_faults(state, reports)) == set(CLIENTS[:5])
        longest = 1.25 * max(np.linalg.norm(updates[client]) for client in CLIENTS[5:10])
        assert np.linalg.norm(play(policy, state, updates).weights) <= longest

    def test_the_wrapped_policy_combines_what_is_left_and_keeps_its_state(self) -> None:
        momentum = after(CheckedUpdates(ServerMomentum()), 2, lambda client, model, number: descend(client, model), 0)
        assert len(momentum.aggregate.inner.value) == SIZE
        median = play(CheckedUpdates(Median()), start(CheckedUpdates(Median())), {"c00": np.ones(SIZE)})
        assert median.weights.tolist() == [1.0] * SIZE

    @pytest.mark.parametrize("changes", [{"radius": 0.5}, {"least_response": 2.0}, {"memory": 0}])
    def test_values_out_of_range_are_refused(self, changes: dict[str, Any]) -> None:
        with pytest.raises(BadSetting, match=next(iter(changes))):
            CheckedUpdates(**changes)


def test_a_saved_state_goes_on_with_the_same_bytes() -> None:
    policy = CheckedUpdates()
    state = after(policy, 3, lambda client, model, number: -descend(client, model))
    blob, arrays = encode_state(state)
    restored = decode_state(blob, arrays, start(policy))
    updates = {client: descend(client, state.weights) for client in CLIENTS}
    one, other = play(policy, state, updates), play(policy, restored, updates)
    assert one.weights.tobytes() == other.weights.tobytes()
    assert one.aggregate.refusals == other.aggregate.refusals


def test_reports_in_any_order_give_the_same_bytes() -> None:
    policy, state = CheckedUpdates(), start(CheckedUpdates())
    reports: list[ClientReport] = [make_report(client, descend(client, state.weights).tolist()) for client in CLIENTS]
    one, other = (policy.aggregate(make_setup(), state, each)[0] for each in (reports, reports[::-1]))
    assert one.tobytes() == other.tobytes()
