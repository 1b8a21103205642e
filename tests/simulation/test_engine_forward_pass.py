"""When a forward pass over all data is made, and when it is charged."""

from __future__ import annotations

from typing import Any

import pytest

from fedbalancer.methods.table import Method

# 40 samples: an epoch has four batches of 1 s, a forward pass takes 2 s. The deadlines let fewer than 40 samples fit,
# so that a threshold above zero needs the list. Losses of the pass are 0, 1, ..., 39.
SIZE = (40, 40, 40)


@pytest.fixture
def world(make_world: Any, needy: Method) -> Any:
    return make_world(needy, size=SIZE)


def forward_s(result: Any) -> list[float]:
    return [report.timings.forward_s for report in result.reports]


def test_not_made_while_the_threshold_is_zero(world: Any) -> None:
    result = world.run("c0", deadline_s=15.0, loss_threshold=0.0)
    assert world.executor.looked == []
    assert forward_s(result) == [0.0]
    assert len(world.executor.trained[0].indices) == 40


def test_made_and_charged_at_the_first_selection_that_needs_the_list(world: Any) -> None:
    first = world.run("c0", deadline_s=15.0, loss_threshold=35.0, round=1)
    second = world.run("c0", deadline_s=15.0, loss_threshold=35.0, round=2)
    assert world.executor.looked == ["c0"]
    assert forward_s(first) == [2.0]
    assert forward_s(second) == [0.0]
    assert first.reports[0].timings.total_s == 2.0 + 2.0 + 6.0 + 3.0  # two epochs of the 30 samples that fit


def test_made_and_charged_every_round_when_the_method_says_so(make_world: Any, needy: Method) -> None:
    world = make_world(needy.with_policies(forward_pass="every"), size=SIZE)
    results = [world.run("c0", deadline_s=15.0, loss_threshold=35.0, round=number) for number in (1, 2, 3)]
    assert world.executor.looked == ["c0"] * 3
    assert [forward_s(result) for result in results] == [[2.0]] * 3


def test_free_when_all_samples_are_selected(world: Any) -> None:
    result = world.run("c0", deadline_s=15.0, loss_threshold=1e-9)  # only the loss of 0 is below
    charged = world.run("c1", deadline_s=15.0, loss_threshold=0.5)
    world.executor.lists = {"c2": world.executor.lists["c2"] + 1.0}
    free = world.run("c2", deadline_s=15.0, loss_threshold=1e-9)
    assert world.executor.looked == ["c0", "c1", "c2"]
    assert (forward_s(result), forward_s(charged), forward_s(free)) == ([2.0], [2.0], [0.0])


def test_not_needed_by_a_client_that_has_trained_before(world: Any) -> None:
    world.run("c0", deadline_s=15.0, loss_threshold=0.0, round=1)
    result = world.run("c0", deadline_s=15.0, loss_threshold=45.0, round=2)  # after training, losses are 10 + i
    assert world.executor.looked == []
    assert forward_s(result) == [0.0]
    assert world.executor.trained[-1].indices.tolist()[-5:] == [35, 36, 37, 38, 39]


def test_counts_towards_the_deadline(world: Any) -> None:
    first = world.run("c0", deadline_s=9.9, loss_threshold=35.0, round=1)  # one batch an epoch: 2 + 2 + e + 3
    second = world.run("c0", deadline_s=9.9, loss_threshold=35.0, round=2)  # 2 + e + 3
    assert (first.reports[0].epochs, second.reports[0].epochs) == (2.0, 4.0)


def test_a_client_that_fails_during_it_is_said_to(make_world: Any, needy: Method, phone: Any) -> None:
    world = make_world(needy, [phone(batch_s=10.0)], size=(40,))
    missing = world.run("c0", deadline_s=15.0, loss_threshold=35.0).missing[0]
    assert (missing.why, missing.timings.forward_s) == ("forward", 20.0)
    assert world.executor.trained == []


def test_not_made_by_a_client_that_gets_the_weights_too_late(make_world: Any, needy: Method, phone: Any) -> None:
    world = make_world(needy, [phone(download_s=16.0)], size=(40,))
    missing = world.run("c0", deadline_s=15.0, loss_threshold=35.0).missing[0]
    assert (missing.why, missing.samples, missing.timings.forward_s) == ("download", 0, 0.0)
    assert world.executor.looked == []


def test_not_made_by_a_client_whose_download_is_paused_beyond_the_deadline(
    make_world: Any, needy: Method, away: Any
) -> None:
    world = make_world(needy, size=SIZE, availability=away({"c0": (21.0, 60.0)}))
    missing = world.run("c0", deadline_s=15.0, loss_threshold=35.0).missing[0]
    assert missing.why == "download"
    assert world.executor.looked == []
    assert world.engine.memory["c0"].losses is None
