"""The audit of printed epsilons: what ships holds, and every privacy defect that was repaired is found again.

A defect is put back into the shipped code. The audit, which knows nothing of it, has to contradict the printed figure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest

from fedbalancer.client import round as client_round
from fedbalancer.client.summary import histogram, minimal, statistics
from fedbalancer.client.summary.statistics import LossStatistics
from fedbalancer.core.contracts import NOTHING, Aggregator, Private
from fedbalancer.core.errors import UnknownName
from fedbalancer.core.types import ServerState, Setup, Summary
from fedbalancer.core.wrapping import Wrapping
from fedbalancer.experiments.audit_worlds import Case, PlantedExecutor, Situation
from fedbalancer.experiments.privacy_audit import (
    MODEL,
    MODEL_PLAIN,
    PLAIN,
    SITUATIONS,
    AuditRow,
    audit_case,
    audit_figures,
    find_cases,
    make_cases,
    to_table,
)
from fedbalancer.methods.table import method as method_of
from fedbalancer.privacy import compose_noise
from fedbalancer.privacy.central import PrivateMean
from fedbalancer.server.aggregate import WeightedMean
from fedbalancer.server.clients import GroupFloor
from fedbalancer.server.server import Server
from fedbalancer.store import privacy as claims

pytest.importorskip("dp_accounting")

Patch = pytest.MonkeyPatch


def row_of(mechanism: str, method: str, situation: Situation = PLAIN, plays: int = 80) -> AuditRow:
    """The audit of the first figure of a mechanism and a method."""
    case = next(make_cases(mechanism, method, situation))
    row = audit_case(case, plays)
    assert row is not None
    return row


@pytest.mark.parametrize("mechanism", ["histogram", "secagg-histogram", "gaussian"])
def test_what_ships_is_not_contradicted(mechanism: str) -> None:
    assert row_of(mechanism, "fedbalancer+batches").holds


def test_silence_shows_nothing_at_all() -> None:
    row = row_of("silent", "fedavg+1t")
    assert (row.claimed, row.shown, row.event) == (0.0, 0.0, "no event")


def test_noise_that_is_a_tenth_of_what_is_claimed_is_found(monkeypatch: Patch) -> None:
    for module in (histogram, statistics, minimal):
        weak = _with_weak_noise(module.with_noise)
        monkeypatch.setattr(module, "with_noise", weak)
    for mechanism in ("histogram", "gaussian"):
        assert not row_of(mechanism, "fedbalancer+batches").holds
    assert not row_of("fraction-tracker", "fedavg+1t").holds


def _with_weak_noise(noisy: Callable[..., Any]) -> Callable[..., Any]:
    return lambda exact, deviation, rng, step=1.0: noisy(exact, deviation / 10, rng, step)


class TestRepairedDefects:
    """Each test puts one defect back."""

    def test_sums_over_selected_samples(self, monkeypatch: Patch) -> None:
        """One more sample redraws the selection, so the sum moves by far more than one loss."""
        monkeypatch.setattr(LossStatistics, "sums_all_losses", property(lambda self: True))
        many = next(each for each in SITUATIONS if each.name == "half of the samples")
        row = row_of("gaussian-selected", "fedbalancer+batches", many, plays=900)
        assert not row.holds

    def test_a_model_beside_policies_that_react_to_losses(self, monkeypatch: Patch) -> None:
        assert not list(make_cases(MODEL, "fedbalancer", MODEL_PLAIN))
        monkeypatch.setattr(claims, "_explain_influence", lambda made: "")
        monkeypatch.setattr(claims, "_name_reacting", lambda made, part: "")
        assert not row_of(MODEL, "fedbalancer", MODEL_PLAIN, plays=400).holds

    def test_a_round_without_reports_that_adds_no_noise(self, monkeypatch: Patch) -> None:
        observe = Server.observe

        def keep_model(self: Server, state: ServerState, result: Any) -> ServerState:
            after = observe(self, state, result)
            return after if result.reports else replace(after, weights=state.weights)

        monkeypatch.setattr(Server, "observe", keep_model)
        alone = Situation(clients_per_round=1, absent=True)
        assert not row_of(MODEL, "fedavg+1t", alone).holds

    @pytest.mark.soak
    def test_noise_in_the_lowest_bits(self, monkeypatch: Patch) -> None:
        monkeypatch.setattr(
            histogram, "with_noise", lambda exact, deviation, rng: exact + rng.normal(0.0, deviation, exact.shape)
        )
        case = next(make_cases("histogram", "fedavg+1t", Situation(rounds=1), noise=10.0))
        row = audit_case(case, 5000)
        assert row is not None
        assert not row.holds
        assert "lowest bit" in row.event

    @pytest.mark.soak
    def test_full_noise_on_the_model_for_one_sample(self, monkeypatch: Patch) -> None:
        """One more sample may reverse an update, which moves the sum twice as far as leaving the update out."""
        monkeypatch.setattr(PlantedExecutor, "one_more_reverses", True)
        case = next(each for each in make_cases("histogram", "fedavg+1t", PLAIN) if each.claim == "whole")
        with monkeypatch.context() as defect:
            defect.setattr(claims, "compose_noise", lambda metadata, model: compose_noise(metadata, 2 * model))
            row = audit_case(case, 3000)
        assert row is not None
        assert not row.holds
        assert row.shown < case.printed(row.releases, row.delta), "what ships holds"

    def test_counts_and_weights(self, monkeypatch: Patch) -> None:
        def tell(summary: Summary) -> Summary:
            return summary

        monkeypatch.setattr(client_round, "without_counts", tell)
        assert not row_of("histogram", "fedbalancer+batches").holds

    def test_epochs(self, monkeypatch: Patch) -> None:
        epochs = client_round.ClientRound.reported_epochs
        monkeypatch.setattr(
            client_round.ClientRound, "reported_epochs",
            lambda self, done: done / self.per_epoch if self.policies.summary.is_private else epochs(self, done),
        )  # fmt: skip
        half = next(each for each in SITUATIONS if each.name == "half of the samples")
        assert not row_of("histogram", "fedbalancer+batches", half).holds

    def test_a_wrapper_that_hides_what_it_wraps_reacts_to(self, monkeypatch: Patch) -> None:
        """Oort selects by losses. A wrapper that answers for it that it reacts to nothing makes the figure finite."""
        wrapped = make_cases(MODEL, "oort+groupfloor", MODEL_PLAIN)
        assert not list(wrapped)
        monkeypatch.setattr(GroupFloor, "reacts_to", NOTHING)
        assert not row_of(MODEL, "oort+groupfloor", MODEL_PLAIN, plays=600).holds

    def test_a_wrapper_that_hides_noise_from_the_seed(self, monkeypatch: Patch) -> None:
        """On Flower everybody knows the seed. Noise that comes from it is refused, also inside a wrapper."""
        pytest.importorskip("flwr")
        from fedbalancer.experiments.audit_worlds import is_accepted_on_flower

        played = method_of("fedavg+1t", aggregate=Passing(PrivateMean(1.0, 2.0)))
        assert not is_accepted_on_flower(played)
        monkeypatch.setattr(Passing, "noise_is_known", False)
        assert is_accepted_on_flower(played)
        row = audit_case(Case(MODEL, "fedavg+1t", "model", Situation(place="flower"), played), 80)
        assert row is not None
        assert not row.holds


@dataclass(frozen=True)
class Passing(Wrapping, Aggregator):
    """A wrapper that changes nothing."""

    own_reactions: ClassVar[frozenset[Private]] = NOTHING

    inner: Aggregator = field(default_factory=WeightedMean)

    def init(self, setup: Setup) -> Any:
        return Inside(self.inner.init(setup))

    def aggregate(self, setup: Setup, state: ServerState, reports: Any) -> Any:
        weights, inner = self.inner.aggregate(setup, self.unwrapped(state), reports)
        return weights, Inside(inner)


@dataclass(frozen=True)
class Inside:
    inner: Any


def test_every_finite_figure_is_a_case() -> None:
    """Where a figure is infinite there is nothing to audit."""
    found = {(case.mechanism, case.claim) for case in find_cases(methods=["fedbalancer", "fedavg+1t"])}
    assert {("histogram", "metadata"), ("silent", "whole"), (MODEL, "model")} <= found
    assert not find_cases([MODEL], ["fedbalancer"])
    assert not find_cases(["gaussian-selected"])
    with pytest.raises(UnknownName, match="histogram"):
        find_cases(["histogramm"])


@pytest.mark.soak
def test_the_whole_audit() -> None:
    rows = audit_figures()
    assert len(rows) > 200
    assert [row for row in rows if not row.holds] == []
    assert {row.situation for row in rows} >= {"plain", "late", "stopped early", "one sample", "on Flower"}
    assert max(row.shown / row.claimed for row in rows if row.claimed) > 0.4  # it can see what there is to see
    assert to_table(rows).count("\n") > 10
