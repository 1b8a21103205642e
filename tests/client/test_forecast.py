"""A phone that does not know how long its upload will take goes by those it has seen."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from builders import make_order
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.client.memory import UPLOADS, ClientMemory
from fedbalancer.client.policies import ClientPolicies
from fedbalancer.client.round import ClientRound
from fedbalancer.client.work import ForecastBatches, ForecastEpochs, WholeBatches, batches_by_forecast
from fedbalancer.core.contracts import WorkPolicy
from fedbalancer.core.errors import BadSetting
from fedbalancer.methods.table import method
from fedbalancer.simulation.attempts import Attempts, RoundClock, simulate_attempts
from fedbalancer.simulation.devices import AlwaysOn, DeviceDraws
from fedbalancer.testing import check_policy

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
        forecasting.uploaded(float(number))
        knowing.uploaded(float(number))
    assert forecasting.memory.uploads_s == tuple(map(float, range(3, UPLOADS + 3)))
    assert knowing.memory.uploads_s == ()
    forecasting.timed(1.0)
    assert len(forecasting.memory.reported(np.zeros(60), None).uploads_s) == UPLOADS
    assert math.isfinite(forecasting.memory.batch_s())


def test_the_modifier_changes_the_work_alone() -> None:
    assert method("canter+forecast").work == ForecastBatches()
    assert method("fedbalancer+forecast").work == ForecastEpochs()
    assert method("fedbalancer+batches+forecast").work == ForecastBatches()
    assert method("canter+forecast").server == method("canter").server


@pytest.mark.parametrize("name", ["fedavg+1t+forecast", "oort+forecast", "canter+forecast+forecast"])
def test_who_does_the_same_whatever_is_forecast_is_refused(name: str) -> None:
    with pytest.raises(BadSetting, match="does the same whatever is forecast"):
        method(name)
