"""Clipping and noise on the mean of updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from builders import make_report, make_setup, make_state
from experiments import tinytask
from scaffold import FirstRows, Scaffold, ScaffoldServer

import fedbalancer as fb
from fedbalancer.client.summary import Histogram
from fedbalancer.client.training import FineTuning, LocalLayers
from fedbalancer.core.contracts import NOTHING, Private
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import ClientReport
from fedbalancer.experiments.simulation import build
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.privacy import compose_noise, epsilon_of
from fedbalancer.privacy.central import PrivateMean
from fedbalancer.server.aggregate import CheckedUpdates
from fedbalancer.server.clients import Uniform
from fedbalancer.server.loop import rounds
from fedbalancer.store.privacy import model_claim, whole_claim
from fedbalancer.testing import check_policy

TINY = 1e-9


def stepped(policy: PrivateMean, reports: list[ClientReport]) -> np.ndarray:
    setup, state = make_setup(), make_state()
    weights, _ = policy.aggregate(setup, state, reports)
    return (weights - state.weights) * setup.clients_per_round


def test_keeps_the_contract() -> None:
    assert check_policy(PrivateMean()) == "aggregate"


def test_one_client_moves_the_sum_by_the_clip_at_most_whatever_it_sends() -> None:
    policy = PrivateMean(clip_norm=0.5, noise_multiplier=TINY)
    few, more = [make_report("a", (0.1, 0.0))], [make_report("a", (0.1, 0.0)), make_report("b", (3e8, -4e8), 1e9)]
    difference = stepped(policy, more) - stepped(policy, few)
    assert np.linalg.norm(difference) == pytest.approx(0.5, rel=1e-4)
    assert difference == pytest.approx([0.3, -0.4], rel=1e-3)


def test_short_updates_are_left_as_they_are_and_weigh_the_same() -> None:
    reports = [make_report("a", (0.1, 0.0), 1.0), make_report("b", (0.0, 0.2), 99.0)]
    assert stepped(PrivateMean(1.0, TINY), reports) == pytest.approx([0.1, 0.2], rel=1e-3)


def test_noise_has_its_deviation_and_repeats_by_the_seed_only() -> None:
    policy = PrivateMean(clip_norm=0.5, noise_multiplier=3.0, draws="system")
    drawn = np.array([stepped(policy, [make_report("a")]) for _ in range(2000)])
    assert drawn.std() == pytest.approx(1.5, rel=0.06)
    seeded = PrivateMean(0.5, 3.0)
    assert stepped(seeded, [make_report("a")]).tolist() == stepped(seeded, [make_report("a")]).tolist()


@pytest.mark.parametrize("wrong", [{"clip_norm": 0.0}, {"noise_multiplier": 0.0}, {"draws": "clock"}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadSetting, match=next(iter(wrong))):
        PrivateMean(**wrong)  # type: ignore[arg-type]


CENTRAL = "aggregate=fedbalancer.privacy.central:PrivateMean(clip_norm=1,noise_multiplier=4)"


def claims(name: str) -> tuple[float, float, str]:
    """The noise of the model's claim for one client and of the whole for one unit, and why the first is infinite."""
    made = fb.method(f"{name.removesuffix(']')},{CENTRAL}]" if "[" in name else f"{name}[{CENTRAL}]")
    model = model_claim(made)
    assert model is not None
    return model.noise_multiplier, whole_claim(made).noise_multiplier, model.why


class TestClaims:
    def test_who_selects_samples_by_losses_has_none(self) -> None:
        assert claims("fedbalancer")[:2] == (0, 0)
        private = claims("fedbalancer[forward_pass=every,summary=histogram(noise_multiplier=3)]")
        assert private[:2] == (0, 0)
        assert "OverThreshold selects samples by their losses" in private[2]

    def test_who_steers_by_exact_losses_has_none_and_is_named(self) -> None:
        assert claims("oort") == (0, 0, "other clients are steered by a client's exact statistics of losses (Oort)")
        assert claims("fedavg+1t+powerofchoice")[0] == 0

    def test_who_steers_by_noisy_losses_has_one_for_a_sample_and_none_for_a_client(self) -> None:
        model, whole, why = claims("oort+forwardpass[summary=histogram(noise_multiplier=3)]")
        assert (model, whole) == (0, pytest.approx(compose_noise(3, 4 / 2)))
        assert "(Oort), and the noise on that hides one sample, not the client" in why

    def test_who_steers_by_nothing_has_one_for_a_client(self) -> None:
        assert claims("fedavg+1t") == (4, 0, "")
        assert claims("fedavg+1t+silent") == (4, 4, "")
        assert claims("prox+1t+forwardpass[summary=histogram(noise_multiplier=3)]")[:2] == (
            4, pytest.approx(compose_noise(3, 4 / 2)),
        )  # fmt: skip

    def test_a_threshold_by_shares_that_hide_the_client_costs_their_noise(self) -> None:
        tracked = "threshold=TrackedThreshold,summary=fraction-tracker(noise_multiplier=3)"
        assert claims(f"fedavg+1t[{tracked}]") == (
            pytest.approx(compose_noise(3, 4)),
            pytest.approx(compose_noise(3, 4)),
            "",
        )

    def test_updates_that_are_clipped_by_each_other_have_none(self) -> None:
        made = fb.method("fedavg+1t", aggregate=CheckedUpdates(PrivateMean(1.0, 4.0)))
        found = model_claim(made)
        assert found is not None
        assert (found.noise_multiplier, whole_claim(made).noise_multiplier) == (0, 0)
        assert "CheckedUpdates" in found.why

    def test_a_policy_of_somebodys_own_has_none_until_it_says_what_it_reacts_to(self) -> None:
        class Mine(Uniform):
            pass

        class Saying(Mine):
            reacts_to: ClassVar = NOTHING

        def noise(clients: Uniform) -> float:
            found = model_claim(fb.method("fedavg+1t", clients=clients, aggregate=PrivateMean(1.0, 4.0)))
            assert found is not None
            return found.noise_multiplier

        assert (noise(Mine()), noise(Saying())) == (0, 4)

    def test_without_noise_on_the_model_there_is_nothing_to_claim_of_it(self) -> None:
        assert model_claim(fb.method("fedavg+1t")) is None
        assert whole_claim(fb.method("oort[summary=histogram(noise_multiplier=3)]")).noise_multiplier == 3


def test_a_whole_run_has_one_epsilon() -> None:
    pytest.importorskip("dp_accounting")
    method = f"prox+1t+forwardpass[{CENTRAL},summary=histogram(noise_multiplier=3)]"
    result = fb.run("synthetic", method, rounds=3, users=8)
    assert result.privacy is not None
    for row in result.privacy.to_dicts():
        times = row["releases"]
        assert row["epsilon"] == pytest.approx(epsilon_of(3, times))
        assert row["model_epsilon"] == pytest.approx(epsilon_of(4, times))
        assert row["whole_epsilon"] == pytest.approx(epsilon_of(compose_noise(3, 4 / 2), times))
    alone = fb.run("synthetic", f"fedavg+1t[{CENTRAL}]", rounds=2, users=8).privacy
    assert alone is not None
    assert 0 < alone["model_epsilon"].max() < float("inf") == alone["whole_epsilon"].max()  # type: ignore[operator]


def test_an_infinite_figure_is_told_before_the_run_and_refused_beside_a_budget() -> None:
    pytest.importorskip("dp_accounting")
    method = f"fedbalancer[{CENTRAL},w=1,forward_pass=every,summary=histogram(noise_multiplier=30)]"
    with pytest.warns(UserWarning, match="epsilon of the model is infinite, because OverThreshold"):
        fb.run("synthetic", method, rounds=2, users=8)
    with pytest.raises(BadSetting, match="epsilon_budget = 8: epsilon is infinite, because OverThreshold"):
        fb.run("synthetic", method, rounds=2, users=8, settings={"epsilon_budget": 8})


@pytest.mark.parametrize("averaged", ["", "+averaged"])
def test_a_round_without_reports_adds_noise_too(averaged: str) -> None:
    """Nobody is in time for such a deadline; that nobody was must not show in the models."""
    task, start, models = tinytask.load(), None, []
    method = f"fedavg{averaged}[deadline=.001T,{CENTRAL}]"
    made = build(RunSpec(task=task, method=method, seed=3), task)
    start = made.server.init(made.executor.initial_weights(3))
    for state, result in rounds(made.server, made.engine, start, lambda state: state.round >= 40):
        assert not result.reports
        models.append(state.weights)
        assert not np.array_equal(made.server.model(state), start.weights)
    steps = np.diff(np.stack([start.weights, *models]), axis=0) * made.settings.clients_per_round
    assert steps.std() == pytest.approx(4, rel=0.15)


@dataclass(frozen=True)
class Declared(Scaffold):
    reacts_to: ClassVar[frozenset[Private]] = NOTHING


class TestLocalTraining:
    """A policy that changes local training has no finite epsilon, unless it declares that it reveals nothing more."""

    def test_an_undeclared_policy_has_no_epsilon(self) -> None:
        private: Any = {"summary": Histogram(noise_multiplier=3.0)}
        assert whole_claim(fb.method("oort", **private)).noise_multiplier == 3
        for slots in ({"train": Scaffold(), "aggregate": ScaffoldServer()}, {"part": FirstRows()}):
            claim = whole_claim(fb.method("oort", **private, **slots))
            assert claim.noise_multiplier == 0
            assert "may send or keep arrays that depend on a client's data" in claim.why

    def test_a_declared_one_and_the_built_in_ones_have(self) -> None:
        private: Any = {"summary": Histogram(noise_multiplier=3.0)}
        for slots in ({"train": Declared()}, {"train": FineTuning()}, {"part": LocalLayers("bias")}):
            assert whole_claim(fb.method("oort", **private, **slots)).noise_multiplier == 3

    def test_noise_on_the_model_does_not_help(self) -> None:
        claim = model_claim(fb.method("fedavg+1t", aggregate=PrivateMean(1.0, 4.0), train=Scaffold()))
        assert claim is not None
        assert claim.noise_multiplier == 0
        assert claim.why.startswith("Scaffold may send or keep arrays")

    def test_a_budget_is_refused(self) -> None:
        method = fb.method("oort", summary=Histogram(noise_multiplier=3.0), part=FirstRows())
        with pytest.raises(BadSetting, match=r"epsilon is infinite, because FirstRows may send or keep arrays"):
            fb.run("synthetic", method, users=8, rounds=1, settings={"epsilon_budget": 8})
