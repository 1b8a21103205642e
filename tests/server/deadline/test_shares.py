"""TimelyFL and PyramidFL: the work and the upload of each client, against their algorithms, written out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from builders import make_ledger, make_report, make_result, make_setup, make_state
from experiments import tinytask
from hypothesis import given
from hypothesis import strategies as st

import fedbalancer as fb
from fedbalancer.client.parts import DroppedUpdate, LastLayers
from fedbalancer.client.work import RepeatedEpochs
from fedbalancer.core.types import Layout
from fedbalancer.experiments.simulation import build
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.server.deadline import KthFastest, RankedByGradient
from fedbalancer.testing import check_policy

SECONDS = st.lists(st.floats(0.1, 50.0), min_size=2, max_size=12)


@pytest.mark.parametrize("policy", [RankedByGradient(), RepeatedEpochs(), DroppedUpdate(), LastLayers()], ids=str)
def test_keeps_the_contract(policy: object) -> None:
    check_policy(policy)


@given(SECONDS, st.floats(1.0, 30.0), st.floats(0.1, 1.0))
def test_timelyfl_schedules_as_its_algorithm(batch_s: list[float], transfer_s: float, share: float) -> None:
    """T_k is the k-th smallest of t_cmp + t_com; alpha_c = min(T_k / (t_cmp + t_com), 1)."""
    ledger = make_ledger([40] * len(batch_s), transfer_s, batch_s)
    setup, state, cohort = make_setup(ledger), make_state(ledger), np.arange(len(batch_s))
    total = [4 * each + transfer_s for each in batch_s]
    interval_s = sorted(total)[max(int(share * len(total) + 1e-9), 1) - 1]
    assert KthFastest(share).plan(setup, state, cohort)[0] == pytest.approx(interval_s)
    expected = [min(interval_s / each, 1) for each in total]
    assert KthFastest(share).part_sizes(setup, state, cohort).tolist() == pytest.approx(expected)


@given(st.integers(1, 30), st.integers(1, 6), st.floats(0.01, 9.0), st.floats(0.0, 500.0), st.floats(0.0, 1.0))
def test_pyramidfl_repeats_as_its_code(per_epoch: int, epochs: int, batch_s: float, left_s: float, beta: float) -> None:
    """The ratio of the local work is 1 + min(10, beta floor((D - t_i) / (c_i / E)) / E)."""
    planned, before_s = per_epoch * epochs, 3.0
    deadline_s = before_s + planned * batch_s + left_s
    done = RepeatedEpochs(beta).batches(lambda n: before_s + n * batch_s, deadline_s + 1e-9, per_epoch, epochs)
    exact = planned * (1 + min(10.0, beta * math.floor((left_s + 1e-9) / batch_s) / planned))
    assert planned <= done <= 11 * planned
    assert abs(done - exact) <= 1 + 1e-6  # it is rounded down
    assert RepeatedEpochs(beta).batches(lambda n: before_s + n * batch_s, before_s, per_epoch, epochs) == 0


@given(SECONDS, st.integers(1, 8), st.randoms(use_true_random=False))
def test_pyramidfl_ranks_and_drops_as_its_code(batch_s: list[float], k: int, random: object) -> None:
    clients = len(batch_s)
    ledger = make_ledger([30] * clients, 10.0, batch_s)
    setup = make_setup(ledger, clients_per_round=k)
    policy, norms = RankedByGradient(), np.random.default_rng(clients).permutation(clients) + 1.0
    state = make_state(ledger, deadline=policy.init(setup))
    reports = [make_report(f"c{n}", [norm, 0.0], trained=10) for n, norm in enumerate(norms)]
    state = replace(state, deadline=policy.observe(setup, state, make_result(reports)))
    times = [10.0 + 3 * setup.epochs * each for each in batch_s]
    top_k = sorted(range(clients), key=lambda n: times[n])[: min(k, clients)]
    utilities = [10 * norms[n] for n in top_k]
    increment = (0.6 - 0.1) / len(top_k)
    drops = {n: 0.1 + sorted(utilities, reverse=True).index(10 * norms[n]) * increment for n in top_k}
    deadline_s, quorum = policy.plan(setup, state, np.arange(clients))
    assert deadline_s == pytest.approx(max(times[n] - drops[n] * 5.0 for n in top_k))
    assert quorum == len(top_k)
    sent = policy.part_sizes(setup, state, np.arange(clients))
    assert sent.tolist() == pytest.approx([1 - drops.get(n, 0.6) for n in range(clients)])


def test_pyramidfl_sends_its_share_and_trains_more_than_all_epochs() -> None:
    task = tinytask.load(model=tinytask.wide, clients_per_round=4)
    result = fb.run(task, "pyramidfl", rounds=4)
    assert (result.rounds["up_bytes"] < result.rounds["completed"] * 4 * 28674).all()
    assert result.clients["epochs"].max() > 5
    world = build(RunSpec(task=task, method="pyramidfl", seed=0), task)
    state = world.server.init(world.executor.initial_weights(0))
    plan = world.server.plan(state, np.arange(8))
    done = world.engine.run(plan, state.weights, 0.0)
    for report in done.reports:
        sent = math.ceil(plan.order.shares[report.client] * len(state.weights) - 1e-9)
        assert report.part is not None
        assert int(report.part.sum()) == sent
        assert not report.update[~report.part].any()
    masks = [DroppedUpdate().mask(Layout([("w", (1000,))]), name, 0.0, plan.order) for name in plan.cohort[:2]]
    assert (masks[0] != masks[1]).any()
