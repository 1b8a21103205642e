"""FedNova: unequal work, equal say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import make_report, make_setup, make_state

from fedbalancer.core.types import ClientReport
from fedbalancer.server.aggregate import FedNova, WeightedMean
from fedbalancer.server.aggregate.fednova import local_steps
from fedbalancer.testing import check_policy


def report(client: str, update: list[float], trained: int, epochs: float) -> ClientReport:
    made = make_report(client, update, 1.0)
    return replace(made, epochs=epochs, summary=replace(made.summary, trained=trained))


def test_keeps_the_contract() -> None:
    assert check_policy(FedNova()) == "aggregate"


def test_steps_are_the_batches_behind_a_report() -> None:
    setup = replace(make_setup(), batch_size=10)
    assert local_steps(setup, report("a", [0.0], trained=95, epochs=3.0)) == 30
    assert local_steps(setup, report("a", [0.0], trained=40, epochs=0.4)) == 4  # stopped in the first epoch
    assert local_steps(setup, report("a", [0.0], trained=100, epochs=1.5)) == 15


def test_who_does_more_steps_pulls_no_harder() -> None:
    setup, state = replace(make_setup(), batch_size=10), make_state(weights=np.zeros(2, dtype=np.float32))
    diligent, quick = report("a", [3.0, 0.0], 300, 1.0), report("b", [0.0, 1.0], 100, 1.0)
    found, own = FedNova().aggregate(setup, state, [diligent, quick])
    assert own is None
    assert found == pytest.approx([1.0, 1.0])  # 20 steps on average, each along the mean direction
    equal = [report("a", [3.0, 1.0], 100, 1.0), report("b", [0.0, 1.0], 100, 1.0)]
    mean, _ = WeightedMean().aggregate(setup, state, equal)
    assert FedNova().aggregate(setup, state, equal)[0] == pytest.approx(mean)
