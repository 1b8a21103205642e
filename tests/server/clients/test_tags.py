"""Selection by tags, canaries, quotas and daily budgets; the simulator plays them, too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedbalancer as fb
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import FailedClient, RoundPlan, RoundResult, ServerState, Setup, Timings
from fedbalancer.server.clients import Canary, DailyBudget, Tagged, TagQuota, Uniform
from fedbalancer.server.clients.participation import DAY_S
from fedbalancer.server.server import Server, ServerPolicies
from fedbalancer.testing import check_policy
from fedbalancer.testing.scenes import make_setup, order, reports

TAGS = ("pixel+charging", "pixel", "charging", "charging+old", "", "")
"""Tags of six clients."""


def scene(selector: Any, round_number: int = 0, clock_s: float = 0.0) -> tuple[Setup, ServerState]:
    setup = make_setup(clients=6, clients_per_round=4)
    names = setup.ledger.clients
    tags = {name: frozenset(text.split("+")) for name, text in zip(names, TAGS, strict=True) if text}
    setup = replace(setup, ledger=replace(setup.ledger, tags=tags))
    state = Server(ServerPolicies(clients=selector), setup).init(np.zeros(3, dtype=np.float32))
    return setup, replace(state, round=round_number, clock_s=clock_s)


def eligible(selector: Any, round_number: int = 0) -> list[int]:
    setup, state = scene(selector, round_number)
    return selector.eligible(setup, state, np.arange(6)).tolist()


@pytest.mark.parametrize(
    "policy",
    [
        Tagged(require="never"),
        Canary(),
        TagQuota(tag="a", at_most=0.5),
        DailyBudget(rounds=1),
        Tagged(Canary(Uniform())),
    ],
)
def test_they_are_sound_policies(policy: Any) -> None:
    check_policy(policy)


def test_clients_with_all_required_and_no_excluded_tags_are_eligible() -> None:
    assert eligible(Tagged(Uniform())) == [0, 1, 2, 3, 4, 5]
    assert eligible(Tagged(Uniform(), require="charging")) == [0, 2, 3]
    assert eligible(Tagged(Uniform(), require="charging + pixel")) == [0]
    assert eligible(Tagged(Uniform(), require="charging", exclude="old+pixel")) == [2]
    assert eligible(Tagged(Tagged(Uniform(), exclude="old"), require="charging")) == [0, 2]


def test_only_canaries_take_part_in_the_first_rounds() -> None:
    assert eligible(Canary(Uniform(), tag="pixel", rounds=3), round_number=2) == [0, 1]
    assert eligible(Canary(Uniform(), tag="pixel", rounds=3), round_number=3) == [0, 1, 2, 3, 4, 5]
    assert eligible(Canary(Uniform(), tag="canary", rounds=3)) == [0, 1, 2, 3, 4, 5], "nobody has the tag"


@pytest.mark.parametrize(
    ("at_least", "at_most", "least", "most"), [(0.0, 0.25, 0, 1), (0.75, 1.0, 3, 4), (0.5, 0.5, 2, 2), (1.0, 1.0, 3, 3)]
)
def test_a_quota_bounds_the_share_of_a_tag(at_least: float, at_most: float, least: int, most: int) -> None:
    """Four of six clients are selected, and three are charging: then the others fill the round."""
    for seed in range(20):
        selector = TagQuota(Uniform(), tag="charging", at_least=at_least, at_most=at_most)
        setup, state = scene(selector)
        setup = replace(setup, seed=seed)
        rows = selector.select_clients(setup, state, np.arange(6)).tolist()
        assert len(rows) == len(set(rows)) == 4
        assert least <= len({0, 2, 3} & set(rows)) <= most


def test_bounds_that_exclude_each_other_are_an_error() -> None:
    with pytest.raises(BadSetting, match=r"at_least 0.6 of TagQuota exceeds at_most 0.5"):
        TagQuota(tag="a", at_least=0.6, at_most=0.5)


def used_once(selector: DailyBudget, clock_s: float = 0.0) -> tuple[Setup, ServerState]:
    """The state after a round in which client 0 reported, 1 failed after 40 s, 2 declined and 3 was not reached."""
    setup, state = scene(selector, clock_s=clock_s)
    names = setup.ledger.clients
    missing = (
        FailedClient(names[1], "train", Timings(train_s=40.0)),
        FailedClient(names[2], "declined"),
        FailedClient(names[3], "unavailable"),
    )
    plan = RoundPlan(order(), names[:4], 4)
    reported = reports(setup, names[:1], 1)
    result = RoundResult(plan, reported, missing, 60.0, 0.0, down_bytes=4_000_000, up_bytes=1_000_000)
    return setup, replace(state, clients=selector.observe(setup, state, result))


@pytest.mark.parametrize(
    ("budget", "left"),
    [
        ({"rounds": 1}, [4, 5]), ({"rounds": 2}, [0, 1, 2, 3, 4, 5]),
        ({"seconds": 30.0}, [0, 2, 3, 4, 5]), ({"seconds": 20.0}, [2, 3, 4, 5]),
        ({"megabytes": 1.25}, [4, 5]), ({"megabytes": 1.3}, [0, 1, 2, 3, 4, 5]),
        ({"releases": 1}, [2, 3, 4, 5]), ({}, [0, 1, 2, 3, 4, 5]),
    ],
)  # fmt: skip
def test_a_client_rests_until_the_next_day_once_a_budget_is_used(budget: dict[str, Any], left: list[int]) -> None:
    selector = DailyBudget(Uniform(), **budget)
    setup, state = used_once(selector, clock_s=3 * DAY_S + 100.0)
    assert selector.eligible(setup, state, np.arange(6)).tolist() == left
    tomorrow = replace(state, clock_s=4 * DAY_S + 1.0)
    assert selector.eligible(setup, tomorrow, np.arange(6)).tolist() == [0, 1, 2, 3, 4, 5]


def test_the_simulator_plays_them() -> None:
    small: dict[str, Any] = {"users": 6, "rounds": 3, "timing_only": True, "settings": {"clients_per_round": 3}}

    def selected(method: str) -> list[int]:
        return list(fb.run("synthetic", method=method, **small).rounds["selected"].to_list())

    assert selected("fedavg+1t[clients=DailyBudget(rounds=1)]") == [3, 3, 0]
    assert selected("fedavg+1t[clients=Tagged(require='no-phone')]") == [0, 0, 0]
    assert selected("fedavg+1t[clients=Tagged(exclude='no-phone')]") == [3, 3, 3]


def test_the_simulator_knows_the_tags_of_a_fleet() -> None:
    """A client has the tags of its device, and the device's class."""
    tags = ("pixel+canary", "pixel", "", "tablet", "tablet+old", "")
    fleet = fb.Fleet([fb.Device(id=f"client-{at}", batch_s=0.1, tags=text) for at, text in enumerate(tags)])
    options: dict[str, Any] = {"rounds": 2, "timing_only": True, "settings": {"clients_per_round": 6}, "devices": fleet}
    x, y = np.zeros((60, 2), dtype=np.float32), [0, 1] * 30
    owners = [f"client-{at % 6}" for at in range(60)]
    task = fb.Task.from_arrays(x, y, model="mlp", users=owners, test=(x, np.array(y)))

    def selected(method: str) -> list[int]:
        return list(fb.run(task, method, **options).rounds["selected"].to_list())

    assert selected("fedavg+1t[clients=Tagged(require='pixel')]") == [2, 2]
    assert selected("fedavg+1t[clients=Canary(rounds=1)]") == [1, 6]
    assert selected("fedavg+1t[clients=Tagged(exclude='old')]") == [5, 5]
    assert fb.Fleet([*fleet.devices]).to_json() == fleet.to_json()
