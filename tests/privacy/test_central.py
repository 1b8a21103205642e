"""Clipping and noise on the mean of updates."""

from __future__ import annotations

import numpy as np
import pytest
from builders import make_report, make_setup, make_state

import fedbalancer as fb
from fedbalancer.privacy import composed, epsilon_of
from fedbalancer.privacy.central import PrivateMean
from fedbalancer.testing import check_policy
from fedbalancer.types import ClientReport

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
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PrivateMean(**wrong)  # type: ignore[arg-type]


def test_a_whole_run_has_one_epsilon() -> None:
    pytest.importorskip("dp_accounting")
    central = "aggregate=fedbalancer.privacy.central:PrivateMean(clip_norm=1,noise_multiplier=4)"
    method = f"fedbalancer[{central},forward_pass=every,summary=histogram(noise_multiplier=3)]"
    result = fb.run("synthetic", method, rounds=3, users=8)
    assert result.privacy is not None
    for row in result.privacy.to_dicts():
        times = row["releases"]
        assert row["epsilon"] == pytest.approx(epsilon_of(3, times))
        assert row["model_epsilon"] == pytest.approx(epsilon_of(4, times))
        assert row["whole_epsilon"] == pytest.approx(epsilon_of(composed(3, 4), times))
    alone = fb.run("synthetic", f"fedavg+1t[{central}]", rounds=2, users=8).privacy
    assert alone is not None
    assert 0 < alone["model_epsilon"].max() < float("inf") == alone["whole_epsilon"].max()  # type: ignore[operator]
