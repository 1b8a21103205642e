"""An audit of the shipped client's round: one who knows two neighbouring data sets and all but the noise tries to tell
them apart by everything that leaves the client except the update of the model. What is achieved bounds epsilon from
below, and must stay under what is claimed."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from builders import make_order
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, norm

from fedbalancer.client.policies import ClientPolicies
from fedbalancer.client.round import ClientMemory, ClientRound
from fedbalancer.client.samples import OverThreshold
from fedbalancer.client.summary import (
    FractionTracker,
    Histogram,
    LossStatistics,
    SecAggHistogram,
    Silent,
)
from fedbalancer.client.work import WholeBatches
from fedbalancer.core.types import FloatArray, Layout, TrainResult
from fedbalancer.privacy import epsilon_of
from fedbalancer.privacy.audit import flatten, granularity, lower_bound, show_epsilon

pytest.importorskip("dp_accounting")

TRIES, DELTA = 5_000, 0.01
ORDER = make_order(loss_threshold=1.0, deadline_s=30.0)
LIST = np.random.default_rng(5).exponential(size=30)
ALL = np.full(30, 9.0)
NUMBERS = ("loss_low", "loss_high", "loss_sum", "over_count", "over_sumsq")
"""The noisy statistics of a summary that has no other form."""
CLIPPED = LossStatistics(26.5, utility_samples="all", loss_clip=5.0)


def report(policy: Any, losses: FloatArray, rng: np.random.Generator, order: Any = ORDER) -> dict[str, Any]:
    """All that a client with these losses sends but its update, after a round in which samples are selected by them."""
    policies = ClientPolicies(samples=OverThreshold(), work=WholeBatches(), summary=policy, forward_pass="every")
    one = ClientRound(policies, order, "c", len(losses), ClientMemory(), batch_s=1.0)
    one.add_forward_pass(losses)
    batches = one.batches_in_time(float, order.deadline_s)
    seen = one.indices[: batches * order.batch_size]
    trained = TrainResult("c", np.zeros(0, dtype=np.float32), seen, losses[seen])
    return {**asdict(one.prepare_report(trained, 1.0, Layout(), rng).summary), "epochs": one.reported_epochs(batches)}


def noisy(policy: Any, told: dict[str, Any]) -> FloatArray:
    """Return the noisy numbers of a report, and remove them from it."""
    names = ["released"] if told["released"] or isinstance(policy, Silent) else NUMBERS
    return np.concatenate([np.atleast_1d(told.pop(name)) for name in names])


def release(policy: Any, losses: FloatArray, rng: np.random.Generator) -> FloatArray:
    """The losses as the server sees them; under secure aggregation the sum with the others, of whom it knows all."""
    found = noisy(policy, report(policy, losses, rng))
    others = getattr(policy, "least", 1) - 1
    return sum((noisy(policy, report(policy, LIST, rng)) for _ in range(others)), start=found)


def scores(policy: Any, pair: tuple[FloatArray, FloatArray], releases: int, tries: int) -> list[FloatArray]:
    """For both data sets the best statistic there is against Gaussian noise, of every try."""
    means = [release(policy, losses, np.random.default_rng(0)) for losses in pair]  # the noise is the same
    direction, rng = means[1] - means[0], np.random.default_rng(1)
    return [
        np.array([sum(release(policy, x, rng) @ direction for _ in range(releases)) for _ in range(tries)])
        for x in pair
    ]


def shown_epsilon(without: FloatArray, with_it: FloatArray) -> float:
    """The largest epsilon that the tries prove."""
    return show_epsilon(without[:, None], with_it[:, None], DELTA).epsilon


NEIGHBOURS = (LIST, np.append(LIST, 9.0))
CASES = [
    (Histogram(1.0), NEIGHBOURS, 1),
    (Histogram(4.0), NEIGHBOURS, 10),
    (SecAggHistogram(1.0, least=3), NEIGHBOURS, 1),
    (CLIPPED, NEIGHBOURS, 1),
    (FractionTracker(1.0), (np.zeros(30), ALL), 1),
]


@pytest.mark.parametrize(("policy", "pair", "releases"), CASES)
def test_nobody_shows_more_than_is_claimed(policy: Any, pair: Any, releases: int) -> None:
    claimed = epsilon_of(policy.release(True).noise_multiplier, releases, DELTA)
    shown = shown_epsilon(*scores(policy, pair, releases, TRIES // releases))
    assert 0 < shown <= claimed


@pytest.mark.parametrize("case", [CASES[0], CASES[4]])
def test_the_audit_finds_noise_that_is_too_small(case: Any) -> None:
    policy, pair, _ = case
    claimed = epsilon_of(policy.release(True).noise_multiplier, 1, DELTA)
    weak = replace(policy, noise_multiplier=policy.noise_multiplier / 2)
    assert shown_epsilon(*scores(weak, pair, 1, TRIES)) > claimed


def test_the_audit_finds_losses_that_are_not_clipped() -> None:
    unclipped, pair = replace(CLIPPED, loss_clip=None), (LIST, np.append(LIST, 50.0))
    shown = shown_epsilon(*scores(unclipped, pair, 1, 2000))
    assert shown > epsilon_of(CLIPPED.release(True).noise_multiplier, 1, DELTA)


def test_sums_over_the_samples_seen_have_no_epsilon_because_one_sample_moves_them_without_bound() -> None:
    """The draw of the samples is by a seed that the server knows, and one sample more redraws it."""
    selected = replace(CLIPPED, utility_samples="selected")
    rng = np.random.default_rng(0)
    order = make_order(loss_threshold=5.0, deadline_s=250.0)
    moved = 0.0
    for _ in range(20):
        losses = np.where(rng.random(1000) < 0.5, 0.2, 4.8)
        pair = [report(selected, x, np.random.default_rng(7), order) for x in (losses, np.append(losses, 4.8))]
        moved = max(moved, float(np.linalg.norm(noisy(selected, pair[1]) - noisy(selected, pair[0]))))
    assert moved > CLIPPED.sensitivity
    for wrong in ({"utility_samples": "selected"}, {"over_samples": "selected"}):
        assert replace(CLIPPED, **wrong).release(True).noise_multiplier == 0


lists = st.lists(st.floats(0, 20), min_size=1, max_size=40)
PRIVATE = [
    (Histogram(7.11), 1.0),
    (SecAggHistogram(7.11, least=3), 1.0),
    (CLIPPED, CLIPPED.sensitivity),
    (FractionTracker(7.11), 1.0),
    (Silent(), 0.0),
]


@pytest.mark.parametrize(("policy", "sensitivity"), PRIVATE)
@given(losses=lists, more=st.floats(0, 20), threshold=st.floats(0, 6), deadline_s=st.floats(1, 60))
@settings(max_examples=60)
def test_one_sample_moves_the_noisy_numbers_by_the_sensitivity_and_nothing_else_at_all(
    policy: Any, sensitivity: float, losses: list[float], more: float, threshold: float, deadline_s: float
) -> None:
    """The noise is the same for both, so that it cancels out. Counts, epochs and seconds must not differ."""
    order = make_order(loss_threshold=threshold, deadline_s=deadline_s)
    pair = [report(policy, np.array(x), np.random.default_rng(3), order) for x in (losses, [*losses, more])]
    first, second = (noisy(policy, told) for told in pair)
    assert np.linalg.norm(second - first) <= sensitivity
    assert pair[0] == pair[1]
    assert ClientPolicies(summary=policy).release().noise_multiplier > 0


@pytest.mark.parametrize(("policy", "sensitivity"), PRIVATE)
def test_low_bits_reveal_no_sample(policy: Any, sensitivity: float) -> None:
    """Every number released is on one grid for all data sets: none is possible with a sample and not without it."""
    step = {CLIPPED: 2.0**-20, FractionTracker(7.11): 2.0**-10}.get(policy, 1.0)
    rng = np.random.default_rng(0)
    for losses in NEIGHBOURS * 200:
        on_grid = noisy(policy, report(policy, losses, rng)) / step
        assert (on_grid == np.rint(on_grid)).all()


def rounded_noise(deviation: float, clients: int) -> FloatArray:
    """The exact distribution of a sum of rounded Gaussian noise, over whole numbers around 0."""
    reach = int(14 * deviation) + 2
    middles = np.abs(np.arange(-reach, reach + 1))
    one = norm.sf((middles - 0.5) / deviation) - norm.sf((middles + 0.5) / deviation)
    found = one
    for _ in range(clients - 1):
        found = np.convolve(found, one)
    return np.asarray(found)


@pytest.mark.parametrize(
    ("sigma", "clients"), [(0.3, 1), (1.0, 1), (7.11, 1), (0.71, 2), (1.0, 3), (7.11, 10), (7.11, 200), (5.0, 100)]
)
def test_rounded_noise_hides_at_least_as_much_as_gaussian_noise(sigma: float, clients: int) -> None:
    """Delta for every epsilon, computed: of the rounded noise of one client, or of its shares that are summed up."""
    probability = rounded_noise(sigma / math.sqrt(clients), clients)
    without, with_it = np.append(probability, 0.0), np.append(0.0, probability)
    for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0):
        least = np.maximum(with_it - math.exp(epsilon) * without, 0.0).sum()
        gaussian = norm.cdf(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * norm.cdf(
            -0.5 / sigma - epsilon * sigma
        )
        assert least <= gaussian * (1 + 1e-9) + 1e-15


class TestBounds:
    """The statistics of the audit."""

    def test_a_bound_is_that_of_clopper_and_pearson(self) -> None:
        for hits, misses in ((50, 3), (100, 0), (7, 90)):
            least, most = beta.ppf(1e-5, hits, 101 - hits), beta.ppf(1 - 1e-5, misses + 1, 100 - misses)
            expected = max(math.log(max(least - 0.01, 1e-300) / most), 0.0)
            assert lower_bound(hits, misses, 100, 0.01) == pytest.approx(expected)
        assert lower_bound(0, 100, 100, 0.01) == 0

    def test_equal_data_show_nothing(self) -> None:
        rng = np.random.default_rng(0)
        for _ in range(20):
            assert show_epsilon(rng.normal(size=(300, 5)), rng.normal(size=(300, 5)), 1e-5).epsilon == 0

    @pytest.mark.parametrize("wrong", [0.0, 0.25, 1e-9])
    def test_a_number_that_differs_without_noise_shows_all_that_so_many_tries_can(self, wrong: float) -> None:
        one = np.zeros((500, 3))
        other = one + np.array([0.0, 0.0, wrong])
        assert show_epsilon(one, other, 1e-5).epsilon == (0.0 if wrong == 0 else pytest.approx(3.24, abs=0.02))

    def test_low_bits_of_doubles_tell_an_absent_sample_and_whole_numbers_do_not(self) -> None:
        """Noise of 7.11 on a count of 0 or 1, as before it was rounded."""
        noise = np.random.default_rng(0).normal(0.0, 7.11, size=(2, 10_000, 1))
        plain = show_epsilon(noise[0], noise[1] + 1, 1e-5)
        assert plain.event.startswith("lowest bit")
        assert plain.epsilon > epsilon_of(7.11, 1, 1e-5)
        assert show_epsilon(np.rint(noise[0]), np.rint(noise[1]) + 1, 1e-5).epsilon < 0.1

    def test_all_numbers_of_a_value_are_seen_whatever_their_fields_are_called(self) -> None:
        order = make_order()
        assert 100.0 in flatten(order)
        assert flatten({"a": [None, "b"], "c": np.arange(2)}, ["c"]) == [-math.pi, 98.0]
        assert granularity(np.array([0.5, 3 * 2.0**-30])).tolist() == [-1, -30]
