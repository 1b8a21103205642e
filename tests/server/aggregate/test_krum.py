"""Krum."""

from __future__ import annotations

from builders import make_report, make_setup, make_state

from fedbalancer.server.aggregate import Krum


def test_an_outlier_is_never_chosen() -> None:
    reports = [make_report(f"c{i}", [1.0 + 0.1 * i, 0.0], 1.0) for i in range(6)]
    for far in (-50.0, 1e6):
        weights, _ = Krum().aggregate(make_setup(), make_state(), [make_report("a", [far, far], 1e9), *reports])
        assert 1.0 <= weights[0] <= 1.5
        assert weights[1] == 0.0


def test_multi_krum_averages_the_best_by_their_samples() -> None:
    near = [make_report("a", [1.0, 0.0], 3.0), make_report("b", [2.0, 0.0], 1.0)]
    far = [make_report("c", [90.0, 0.0], 1.0), make_report("d", [500.0, 0.0], 1.0)]
    weights, _ = Krum(malicious=0.25, keep=2).aggregate(make_setup(), make_state(), [*far, *near])
    assert weights.tolist() == [1.25, 0.0]


def test_one_and_two_reports_are_enough() -> None:
    weights, _ = Krum().aggregate(make_setup(), make_state(), [make_report("a", [1.0, 2.0], 1.0)])
    assert weights.tolist() == [1.0, 2.0]
    pair = [make_report("b", [5.0, 5.0], 1.0), make_report("a", [1.0, 2.0], 1.0)]
    assert Krum().aggregate(make_setup(), make_state(), pair)[0].tolist() == [1.0, 2.0]
