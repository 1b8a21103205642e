"""Noise in whole steps, and where a device draws it."""

from __future__ import annotations

import math
import os
from dataclasses import replace

import numpy as np
import pytest
from builders import make_order

from fedbalancer.client.live import LiveRound, WallClock
from fedbalancer.client.policies import ClientPolicies
from fedbalancer.client.round import ClientMemory
from fedbalancer.client.summary import Histogram, system_generator
from fedbalancer.client.summary.noise import with_noise
from fedbalancer.core.types import Layout, TrainResult


@pytest.mark.parametrize(("deviation", "step"), [(7.11, 1.0), (1.0, 1.0), (26.5, 2.0**-20), (1e8, 2.0**-20)])
def test_the_noise_has_its_deviation_and_its_step(deviation: float, step: float) -> None:
    exact = np.full(20_000, 3.0)
    noise = with_noise(exact, deviation, np.random.default_rng(0), step) - exact
    assert (noise / step == np.rint(noise / step)).all()
    assert noise.mean() == pytest.approx(0.0, abs=5 * deviation / math.sqrt(20_000))
    assert noise.std() == pytest.approx(math.sqrt(deviation**2 + step**2 / 12), rel=0.03)


def test_the_systems_generator_draws_like_any_other() -> None:
    rng = system_generator()
    drawn = rng.normal(1.0, 2.0, size=20_000)
    assert (drawn.mean(), drawn.std()) == (pytest.approx(1.0, abs=0.08), pytest.approx(2.0, rel=0.04))
    assert rng.random(20_000).mean() == pytest.approx(0.5, abs=0.02)
    assert np.bincount(rng.integers(0, 4, size=20_000)) == pytest.approx([5000] * 4, rel=0.07)


def finished(seed: int) -> tuple[float, ...]:
    """Return what a device releases about three samples after a round of a server with this seed."""
    policies = ClientPolicies(summary=Histogram(7.11))
    one = LiveRound(policies, replace(make_order(), seed=seed), "c", 3, ClientMemory(), 1.0, budget_s=9.0,
                    clock=WallClock(), began_s=0.0)  # fmt: skip
    found = one.finish(TrainResult("c", np.zeros(0, dtype=np.float32), np.arange(3), np.ones(3)), Layout())
    assert found is not None
    return found.summary.released


def test_all_bits_of_a_devices_noise_are_the_operating_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known bits of the system give known noise: nothing else goes into it. With its own bits no two are the same."""
    assert finished(0) != finished(0)
    drawn: list[int] = []

    def known(count: int) -> bytes:
        drawn.append(count)
        return bytes((17 * len(drawn) + 29 * place) % 256 for place in range(count))

    monkeypatch.setattr(os, "urandom", known)
    first = finished(0)
    assert sum(drawn) >= 64 * 8
    drawn.clear()
    assert finished(1) == first
