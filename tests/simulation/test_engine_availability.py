"""Clients that are away for a while, or for good."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fedbalancer.client.work import AllOrNothing, WholeEpochs
from fedbalancer.methods.table import Method

FEDAVG = Method("fedavg").with_policies(work=AllOrNothing())
PROX = Method("prox").with_policies(work=WholeEpochs())


def test_who_is_there_is_asked_at_the_end_of_the_selection_window(make_world: Any, away: Any) -> None:
    world = make_world(FEDAVG, availability=away({"c0": (0.0, 120.0), "c2": (120.0, 121.0)}))
    assert world.engine.available(99.9).tolist() == [1, 2]
    assert world.engine.available(100.0).tolist() == [0, 1]
    assert world.engine.available(101.0).tolist() == [0, 1, 2]


def test_a_pause_is_added_to_the_time_of_the_client(make_world: Any, away: Any) -> None:
    # The round starts at 100 + 20 s; alone the client would need 15 s.
    world = make_world(FEDAVG, availability=away({"c0": (125.0, 165.0)}))
    result = world.run("c0", deadline_s=100.0, clock_s=100.0)
    timings = result.reports[0].timings
    assert (timings.paused_s, timings.total_s, result.seconds) == (40.0, 55.0, 55.0)


def test_a_pause_may_cost_epochs(make_world: Any, away: Any) -> None:
    world = make_world(PROX, availability=away({"c0": (22.0, 30.0)}))
    result = world.run("c0", deadline_s=20.0)  # 2 + 8 (away) + 2 e + 3
    assert (result.reports[0].epochs, result.seconds) == (3.0, 19.0)


@pytest.mark.parametrize(
    ("begin", "why"), [(21.0, "download"), (25.0, "train"), (33.0, "upload")], ids=["download", "train", "upload"]
)
def test_a_pause_beyond_the_deadline_fails_in_its_phase(make_world: Any, away: Any, begin: float, why: str) -> None:
    world = make_world(FEDAVG, availability=away({"c0": (begin, 500.0)}))
    result = world.run("c0", "c1", deadline_s=100.0)
    assert [(missing.client, missing.why) for missing in result.missing] == [("c0", why)]
    assert result.seconds == 100.0


@pytest.mark.parametrize(("deadline_s", "seconds"), [(100.0, 100.0), (math.inf, 15.0)])
@pytest.mark.parametrize("method", [FEDAVG, PROX], ids=["fedavg", "prox"])
def test_a_client_that_never_comes_back_is_unavailable(
    make_world: Any, away: Any, method: Method, deadline_s: float, seconds: float
) -> None:
    world = make_world(method, availability=away({"c0": (21.0, math.inf)}))
    result = world.run("c0", "c1", deadline_s=deadline_s)
    assert [(missing.client, missing.why) for missing in result.missing] == [("c0", "unavailable")]
    assert [report.client for report in result.reports] == ["c1"]
    assert result.seconds == seconds
    assert [work.client for work in world.executor.trained] == ["c1"]


def test_a_client_that_leaves_for_good_after_its_upload_has_made_it(make_world: Any, away: Any) -> None:
    world = make_world(FEDAVG, availability=away({"c0": (35.0, math.inf)}))
    assert [report.client for report in world.run("c0", deadline_s=100.0).reports] == ["c0"]


def test_without_a_deadline_nobody_waits_for_those_who_never_come(make_world: Any, away: Any) -> None:
    world = make_world(FEDAVG, availability=away(dict.fromkeys(("c0", "c1"), (0.0, math.inf))))
    result = world.run("c0", "c1", deadline_s=math.inf)
    assert (result.reports, result.seconds, len(result.missing)) == ((), 0.0, 2)
