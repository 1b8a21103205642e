"""Work policies and the mini-batches of a training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from builders import make_order
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.client.policies import ClientPolicies
from fedbalancer.client.round import UPLOADS, ClientMemory, ClientRound
from fedbalancer.client.work import (
    AllOrNothing,
    ForecastBatches,
    ForecastEpochs,
    WholeBatches,
    WholeEpochs,
    batches,
    batches_by_forecast,
    epochs,
)
from fedbalancer.core.contracts import WorkPolicy
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import ClientWork
from fedbalancer.methods.table import method
from fedbalancer.simulation.attempts import Attempts, RoundClock, simulate_attempts
from fedbalancer.simulation.devices import AlwaysOn, DeviceDraws
from fedbalancer.testing import check_policy


@st.composite
def rounds(draw: Callable[..., Any]) -> tuple[list[float], float, int, int]:
    """When a client is done after 0, 1, ... batches (it never decreases; from some point on maybe never), a deadline,
    batches per epoch and epochs."""
    per_epoch, epochs = draw(st.integers(1, 8)), draw(st.integers(1, 6))
    count = per_epoch * epochs + 1
    steps = draw(st.lists(st.floats(0, 5), min_size=count, max_size=count))
    never = draw(st.integers(0, 2 * count))
    elapsed = [time if number < never else math.inf for number, time in enumerate(accumulate(steps))]
    deadline_s = draw(st.floats(0, 150) | st.sampled_from(elapsed) | st.just(math.inf))
    return elapsed, deadline_s, per_epoch, epochs


def done(policy: WorkPolicy, case: tuple[list[float], float, int, int]) -> int:
    elapsed, deadline_s, per_epoch, epochs = case
    return policy.batches(lambda count: elapsed[count], deadline_s, per_epoch, epochs)


@given(rounds())
def test_all_or_nothing(case: tuple[list[float], float, int, int]) -> None:
    elapsed, deadline_s, per_epoch, epochs = case
    everything = per_epoch * epochs
    assert done(AllOrNothing(), case) == (everything if elapsed[everything] <= deadline_s else 0)


@given(rounds())
def test_whole_epochs_is_the_largest_number_of_epochs_in_time(case: tuple[list[float], float, int, int]) -> None:
    elapsed, deadline_s, per_epoch, epochs = case
    fitting = [epoch for epoch in range(1, epochs + 1) if elapsed[epoch * per_epoch] <= deadline_s]
    assert done(WholeEpochs(), case) == max(fitting, default=0) * per_epoch


@given(rounds())
def test_whole_batches_is_the_largest_number_of_batches_in_time(case: tuple[list[float], float, int, int]) -> None:
    elapsed, deadline_s, per_epoch, epochs = case
    fitting = [count for count in range(1, per_epoch * epochs + 1) if elapsed[count] <= deadline_s]
    assert done(WholeBatches(), case) == max(fitting, default=0)


@given(rounds())
def test_finer_rules_never_do_less(case: tuple[list[float], float, int, int]) -> None:
    assert done(AllOrNothing(), case) <= done(WholeEpochs(), case) <= done(WholeBatches(), case)


@pytest.mark.parametrize("policy", [AllOrNothing(), WholeEpochs(), WholeBatches()])
def test_exactly_at_the_deadline_is_in_time(policy: WorkPolicy) -> None:
    assert policy.batches(float, 6.0, 3, 2) == 6


seconds = st.floats(0.01, 50)


def fitting(deadline_s: float, upload_s: float) -> int:
    return max(int(deadline_s - upload_s), 0)


def client(work: WorkPolicy, uploads_s: tuple[float, ...] = (), samples: int = 60) -> ClientRound:
    """Batches of ten, two epochs, thirty seconds."""
    order = make_order(deadline_s=30.0, epochs=2)
    return ClientRound(ClientPolicies(work=work), order, "ann", samples, ClientMemory(uploads_s=uploads_s))


def attempt(made: ClientRound, upload_s: float, download_s: float = 2.0, batch_s: float = 4.0) -> Attempts:
    draws = DeviceDraws(np.array([batch_s]), np.array([download_s]), np.array([upload_s]))
    return simulate_attempts([made], draws, made.order, RoundClock(AlwaysOn(), 20.0))


@pytest.mark.parametrize("policy", [ForecastBatches(), ForecastEpochs()])
def test_they_keep_the_contract_of_their_slot(policy: WorkPolicy) -> None:
    check_policy(policy)


@given(st.lists(seconds, min_size=1, max_size=20), seconds)
def test_no_other_upload_seen_promises_more(seen_s: list[float], deadline_s: float) -> None:
    fits = partial(fitting, deadline_s)
    ordered = [*sorted(seen_s), 2 * max(seen_s)]
    worth = {fits(each): (rank + 1) / len(ordered) * fits(each) for rank, each in enumerate(ordered)}
    found = batches_by_forecast(seen_s, fits)
    assert worth[found] == pytest.approx(max(worth.values()))


def test_an_unsteady_network_leaves_more_room_than_a_steady_one() -> None:
    steady, unsteady = [5.0] * 9 + [5.2], [*np.linspace(1.0, 9.0, 10)]
    fits = partial(fitting, 30.0)
    assert fits(batches_by_forecast(steady, fits)) < fits(batches_by_forecast(unsteady, fits))


@pytest.mark.parametrize(("upload_s", "in_time"), [(0.5, True), (4.0, True), (4.1, False), (6.5, False)])
def test_a_report_is_in_time_by_what_its_upload_really_takes(upload_s: float, in_time: bool) -> None:
    made = attempt(client(ForecastBatches(), (4.0,) * UPLOADS), upload_s)
    assert made.batches.tolist() == [6], "30 s less 2 and 4 s for 4 s each"
    assert made.is_in_time.tolist() == [in_time]
    assert made.failed_phase.tolist() == ["" if made.is_in_time[0] else "upload"]
    assert attempt(client(WholeBatches()), upload_s).is_in_time.tolist() == [True], "who knows it does a batch less"


def test_before_its_first_upload_a_phone_goes_by_its_download() -> None:
    assert attempt(client(ForecastBatches()), 1.0, download_s=2.0).batches.tolist() == [(30 - 2 - 4) // 4]
    assert attempt(client(ForecastBatches()), 1.0, download_s=6.0).batches.tolist() == [(30 - 6 - 12) // 4]


@pytest.mark.parametrize(("work", "least"), [(ForecastBatches(), 1), (ForecastEpochs(), 6)])
def test_where_nothing_seems_to_fit_the_least_is_tried(work: WorkPolicy, least: int) -> None:
    made = attempt(client(work, (100.0, 100.0)), 0.5, batch_s=1.0)
    assert made.batches.tolist() == [least]
    assert made.is_in_time.all(), "its upload was short after all"


def test_only_who_forecasts_remembers_uploads_and_only_the_last() -> None:
    forecasting, knowing = client(ForecastBatches()), client(WholeBatches())
    for number in range(UPLOADS + 3):
        forecasting.note_upload_s(float(number))
        knowing.note_upload_s(float(number))
    assert forecasting.memory.uploads_s == tuple(map(float, range(3, UPLOADS + 3)))
    assert knowing.memory.uploads_s == ()
    forecasting.note_batch_s(1.0)
    assert len(forecasting.memory.note_report(np.zeros(60), None, {}).uploads_s) == UPLOADS
    assert math.isfinite(forecasting.memory.batch_s())


def test_the_modifier_changes_the_work_alone() -> None:
    assert method("canter+forecast").work == ForecastBatches()
    assert method("fedbalancer+forecast").work == ForecastEpochs()
    assert method("fedbalancer+batches+forecast").work == ForecastBatches()
    assert method("canter+forecast").server == method("canter").server


@pytest.mark.parametrize("name", ["fedavg+1t+forecast", "oort+forecast", "canter+forecast+forecast"])
def test_who_does_the_same_whatever_is_forecast_is_refused(name: str) -> None:
    with pytest.raises(BadSetting, match="does not depend on a forecast"):
        method(name)


def work(size: int, count: int, batch_size: int, seed: int = 0, client: str = "ann") -> ClientWork:
    return ClientWork(client, np.arange(size) * 3, count, batch_size, 0.1, 0.0, None, seed)


@given(st.integers(1, 30), st.integers(0, 40), st.integers(1, 12))
def test_every_epoch_is_a_shuffle_of_all_samples_in_batches_with_a_short_last_one(
    size: int, count: int, batch_size: int
) -> None:
    found = list(batches(work(size, count, batch_size)))
    assert len(found) == count
    per_epoch = -(-size // batch_size)
    assert [epoch for epoch, _ in found] == [number // per_epoch for number in range(count)]
    for epoch in range(count // per_epoch):
        rows = np.concatenate([rows for number, rows in found if number == epoch])
        assert sorted(rows) == list(np.arange(size) * 3)
        sizes = [len(rows) for number, rows in found if number == epoch]
        assert sizes[:-1] == [batch_size] * (per_epoch - 1)


@given(st.integers(1, 30), st.integers(0, 40), st.integers(1, 12), st.integers(1, 5))
def test_an_epoch_cut_short_is_the_beginning_of_the_whole_one(
    size: int, count: int, batch_size: int, per_epoch: int
) -> None:
    whole = work(size, 40 * (-(-size // batch_size)), batch_size)
    short = replace(whole, batches=count, epoch_batches=per_epoch)
    full = list(epochs(whole))
    found = list(epochs(short))
    per_epoch = min(per_epoch, -(-size // batch_size))
    assert sum(-(-len(rows) // batch_size) for rows in found) == count
    for number, rows in enumerate(found):
        left = count - number * per_epoch
        assert list(rows) == list(full[number][: min(per_epoch, left) * batch_size])
    assert [list(rows) for _, rows in batches(short)] == [
        list(rows[at : at + batch_size]) for rows in found for at in range(0, len(rows), batch_size)
    ]


def test_the_order_depends_on_seed_client_and_epoch() -> None:
    def first(*arguments: object, epoch: int = 0) -> list[int]:
        return list(dict(batches(work(50, 2, 50, *arguments)))[epoch])  # type: ignore[arg-type]

    assert first(1) == first(1)
    assert len({tuple(order) for order in (first(1), first(2), first(1, "bob"), first(1, epoch=1))}) == 4


def test_batches_of_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        list(batches(work(0, 1, 10)))


def test_epochs_of_no_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="epochs of 0 batches"):
        list(batches(replace(work(5, 1, 10), epoch_batches=0)))
