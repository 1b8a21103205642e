"""The server's estimates of counts that a private summary withholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from builders import make_order, make_report
from hypothesis import given
from hypothesis import strategies as st

import fedbalancer as fb
from fedbalancer.client.policies import ClientPolicies
from fedbalancer.client.round import decode_summaries
from fedbalancer.client.samples import EverySample, OverThreshold
from fedbalancer.client.summary import FractionTracker, LossStatistics, Silent, coarse
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import ClientReport
from fedbalancer.methods.table import method
from fedbalancer.server.aggregate import WeightedMean

CLIPPED = LossStatistics(1.0, utility_samples="all", loss_clip=5.0)
SIZES = {"a": 40, "b": 80}


def read(policies: ClientPolicies, **told: object) -> dict[str, ClientReport]:
    reports = [make_report(client, **{"trained": 0, "loss_count": 0.0, **told}) for client in SIZES]
    return {each.client: each for each in decode_summaries(reports, policies, make_order(), SIZES.__getitem__)}


def test_the_count_of_selected_samples_is_estimated_from_what_was_released() -> None:
    tracked = ClientPolicies(samples=OverThreshold(), summary=FractionTracker(1.0))
    found = read(tracked, released=(0.25,))
    assert [(each.summary.trained, each.summary.estimated) for each in found.values()] == [(10, True), (20, True)]
    assert [each.summary.trained for each in read(tracked, released=(-7.0,)).values()] == [1, 1]
    assert [each.summary.trained for each in read(tracked, released=(7.0,)).values()] == [40, 80]


@pytest.mark.parametrize("summary", [Silent(), FractionTracker(1.0), CLIPPED])
def test_who_does_not_select_by_the_threshold_is_taken_to_train_everything(summary: object) -> None:
    policies = ClientPolicies(samples=EverySample(), summary=summary)  # type: ignore[arg-type]
    assert [each.summary.trained for each in read(policies, released=(0.25,)).values()] == [40, 80]


def test_a_sum_of_all_losses_is_over_the_samples_that_the_client_enrolled_with() -> None:
    found = read(ClientPolicies(summary=CLIPPED), loss_sum=80.0)
    assert [each.summary.loss_mean for each in found.values()] == [2.0, 1.0]


def test_counts_that_clients_tell_stay_as_they_are() -> None:
    policies = ClientPolicies(samples=OverThreshold(), summary=replace(CLIPPED, noise_factor=0.0))
    report = make_report("a", trained=7)
    assert decode_summaries([report], policies, make_order(), SIZES.__getitem__) == (report,)


@given(st.floats(1e-8, 1e9))
def test_coarse_seconds_have_two_digits_and_are_never_more(seconds: float) -> None:
    found = coarse(seconds)
    assert 0.9 * seconds <= found <= seconds
    assert found == pytest.approx(float(f"{found:.1e}"), rel=1e-12)


class Spy(WeightedMean):
    """The weights and counts of all updates that were aggregated."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []

    def aggregate(self, setup: Any, state: Any, reports: Sequence[ClientReport]) -> Any:
        self.seen += [(report.weight, report.epochs) for report in reports]
        return super().aggregate(setup, state, reports)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("fedbalancer[w=1,forward_pass=every,summary=histogram(noise_multiplier=1)]", {1.0}),
        ("fedavg+1t+silent", {1.0}),
        ("fedbalancer[w=1,forward_pass=every,summary=histogram(noise_multiplier=0)]", None),
    ],
)
def test_all_updates_of_a_private_run_weigh_the_same(name: str, weights: set[float] | None) -> None:
    spy = Spy()
    fb.run("synthetic", method(name).with_policies(aggregate=spy), rounds=6, users=8)
    found, epochs = (set(column) for column in zip(*spy.seen, strict=True))
    assert found == weights if weights else len(found) > 1
    assert epochs == {5.0} if weights else epochs


def test_an_aggregate_that_needs_counts_is_refused() -> None:
    with pytest.raises(BadSetting, match="FedNova needs the local steps of clients, which Histogram withholds"):
        method("fedavg+1t[aggregate=FedNova,summary=histogram]")
    method("fedavg+1t[aggregate=FedNova,summary=histogram(noise_multiplier=0)]")
